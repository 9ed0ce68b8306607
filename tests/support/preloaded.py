"""Imports both servers, in the process whose forks become servers (:mod:`tests.support.forked`)."""

import gc

import icecore.rpc.grpc_net  # noqa: F401
import icecore_coordinator.__main__  # noqa: F401
import icecore_node.__main__  # noqa: F401

# A collection in a fork would write to the head of every object, and so copy every page.
gc.collect()
gc.freeze()
