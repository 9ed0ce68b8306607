"""Generated from proto/icecore/v1 by `make proto`; do not edit anything in this folder."""
