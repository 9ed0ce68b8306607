"""``IcecoreContainer`` as a user's test takes it: several at once, each ready when it is there.

``make test-docker`` runs it, where testcontainers is installed and a Docker daemon answers.
"""

import pytest

from icecore.blocking import Admin, Consumer, Producer
from tests.deploy.images import built_image

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_two_containers_serve_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("testcontainers", reason="pip install 'icecore[testing]'")
    from icecore.testing.container import IcecoreContainer

    # Its helper is an image that would have to be pulled; the containers end with the test.
    monkeypatch.setattr("testcontainers.core.config.testcontainers_config.ryuk_disabled", True)
    image = built_image()
    with IcecoreContainer(image) as one, IcecoreContainer(image, nodes=3) as three:
        assert one.bootstrap != three.bootstrap
        for each, copies in ((one, 1), (three, 3)):
            with Admin(each.bootstrap) as admin:
                assert not admin.describe_topics(), "the topic of the check is gone"
                (topic,) = (admin.create_topic("t", partitions=2),)
                assert topic.settings.replication_factor == copies
            with Producer(each.bootstrap) as producer:
                sent = [producer.send("t", b"%d" % n) for n in range(10)]
                assert all(record.result(30).offset >= 0 for record in sent)
            with Consumer(each.bootstrap, "t", start="earliest", stop_at_end=True) as consumer:
                assert len(list(consumer)) == 10
