"""The native transport: framed TCP between Python processes, without copies of what is bulk.

    frame.py       one frame: head, meta, body; sizes and checksum
    inbox.py       received bytes to frames, without I/O: where bytes go, what they complete
    outbox.py      buffers to be sent, in order and in bounded turns, without I/O
    tls.py         TLS in the place of a bare socket, the handshake
    sockets.py     what the kernel does for a connection
    connection.py  one socket: inbox, outbox, keep-alive, the end
    stream.py      one end of a stream, which has a connection of its own
    client.py      calls under way on connections of several classes
    accepting.py   accepts connections, with TLS if there is any
    handlers.py    how one handler is run and its outcome sent
    server.py      connections and calls of one server, and their bounds
    net.py         the port ``icecore.rpc.ports.Net`` over all of it

A file imports only those above it. gRPC stays the interface for other languages and serves the same
handlers; ``docs/adr/0007-native-transport.md`` says why there are two.
"""
