"""Server-sent events, as the api writes them."""

from producer.sse import Message, Reader


def read(text):
    reader = Reader()
    return [message for line in text.split("\n") if (message := reader.line(line)) is not None]


def test_messages_are_read():
    assert read('id: 3\nevent: audio.chunk\ndata: {"index":3}\n\n') == [Message("audio.chunk", '{"index":3}', "3")]


def test_comments_and_retry_lines_are_no_messages():
    assert read(": still here\n\nretry: 1000\n\ndata: x\n\n") == [Message("message", "x", None)]


def test_lines_of_one_message_are_joined_and_the_id_stays():
    assert read("id: 1\ndata: a\ndata:b\n\ndata: c\n\n") == [
        Message("message", "a\nb", "1"),
        Message("message", "c", "1"),
    ]


def test_a_message_cut_short_is_dropped():
    assert read("data: whole\n\nevent: audio.chunk\ndata: half") == [Message("message", "whole", None)]
