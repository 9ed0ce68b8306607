"""Heartbeats report each change once, and everything that still holds at the start of a stream."""

from icecore_node.identity.node_report import InitialReport, LedLog, NodeReport


def test_news_are_taken_once_and_the_newest_watermark_counts() -> None:
    news = NodeReport()
    news.watermark_moved(1, LedLog(5, 500))
    news.watermark_moved(1, LedLog(7, 700))
    news.report_unknown(2)
    news.report_unknown(2)
    news.report_fenced(3)
    taken = news.take()
    assert taken.led == {1: LedLog(7, 700)}
    assert (list(taken.unknown), list(taken.fenced)) == ([2], [3])
    again = news.take()
    assert not (again.led or again.unknown or again.fenced or again.diverged)


def test_what_holds_no_longer_is_not_said() -> None:
    news = NodeReport()
    news.report_unknown(2)
    news.forget_unknown(2)
    news.forget_unknown(9)
    assert not news.take().unknown


def test_what_vanished_is_said_again_until_a_whole_copy_is_there() -> None:
    news = NodeReport()
    for each in (5, 6, 7):
        news.report_vanished(each)
    taken = news.take()
    assert list(taken.unknown) == list(taken.vanished) == [5, 6, 7]
    news.forget_unknown(5)  # it makes room for a copy, which fails
    news.report_unknown(5)
    news.report_unknown(9)
    taken = news.take()
    assert (list(taken.unknown), list(taken.vanished)) == ([5, 9], [5])
    news.forget_vanished(5)  # another one does not
    news.report_deleted(6)
    news.report_unknown(5)  # and is damaged later
    assert not news.take().vanished
    news.begin(InitialReport([8], {}))
    taken = news.take()
    assert (list(taken.unknown), list(taken.vanished)) == ([8, 7], [7])


def test_a_new_stream_begins_with_what_holds_and_keeps_the_divergences() -> None:
    news = NodeReport()
    news.report_unknown(2)
    news.report_divergence(4)
    news.begin(InitialReport([5], {6: LedLog(60, 6)}, [7]))
    taken = news.take()
    assert (list(taken.unknown), list(taken.fenced), list(taken.diverged)) == ([5], [7], [4])
    assert taken.led == {6: LedLog(60, 6)}
