"""Which KV blocks a node gives up first; see port.py for the contract."""

from evctl.policy.eviction.belady import Belady
from evctl.policy.eviction.expected import ExpectedUse
from evctl.policy.eviction.fifo import S3Fifo, Sieve
from evctl.policy.eviction.gaps import GapModel, GapSnapshot, GapTable, Habit
from evctl.policy.eviction.lru import Lru, ReferencedLast, SessionRelease
from evctl.policy.eviction.port import BranchKey, Ending, EvictionOrder, Key, RefClass
from evctl.policy.eviction.registry import ORDERS, make_order
from evctl.policy.eviction.retention import TTL_S, Retention

__all__ = [
    "ORDERS",
    "TTL_S",
    "Belady",
    "BranchKey",
    "Ending",
    "EvictionOrder",
    "ExpectedUse",
    "GapModel",
    "GapSnapshot",
    "GapTable",
    "Habit",
    "Key",
    "Lru",
    "RefClass",
    "ReferencedLast",
    "Retention",
    "S3Fifo",
    "SessionRelease",
    "Sieve",
    "make_order",
]
