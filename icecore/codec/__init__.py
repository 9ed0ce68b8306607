"""A batch as bytes and as columns: header, framing, records, Arrow views. No I/O.

It imports only ``icecore/errors.py`` and ``icecore/model.py``.
"""
