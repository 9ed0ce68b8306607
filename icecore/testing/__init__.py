"""For tests of programs that use icecore: a real cluster in a fixture, or in a container.

::

    # in the file of your fixtures
    pytest_plugins = ["icecore.testing.fixtures"]

    # in your tests
    def test_orders(icecore_bootstrap: str, icecore_topic: str) -> None:
        with Producer(icecore_bootstrap) as producer:
            producer.send(icecore_topic, b"an order").result(30)

``fixtures`` starts processes on this machine (``pip install 'icecore[server]'`` and pytest);
``container`` has ``IcecoreContainer`` for testcontainers (``pip install 'icecore[testing]'``).
"""
