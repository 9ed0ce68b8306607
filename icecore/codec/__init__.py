"""A batch as bytes and as columns: header, framing, records, Arrow views. No I/O.

It imports only files of ``icecore/`` that lie beside it, such as ``icecore/model.py``.
"""
