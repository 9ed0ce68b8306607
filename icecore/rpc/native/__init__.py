"""The native transport: framed TCP between Python processes, without copies of what is bulk.

    frame.py       one frame: head, meta, body; sizes and checksum
    inbox.py       received bytes to frames, without I/O: where bytes go, what they complete
    outbox.py      buffers to be sent, in order and in bounded turns, without I/O
    connection.py  one socket: inbox, outbox, keep-alive, the end
    stream.py      one end of a stream, which has a connection of its own
    client.py      calls under way on connections of several classes
    server.py      accepts connections and runs the handlers
    net.py         the port ``icecore.rpc.ports.Net`` over all of it

A file imports only those above it. gRPC stays the interface for other languages and serves the same
handlers; ``docs/adr/0007-native-transport.md`` says why there are two.
"""
