"""Hypothesis strategies: one for every message type, built from the annotations."""

from __future__ import annotations

from enum import Enum
from typing import Any, get_args

import msgspec
from hypothesis import strategies as st
from msgspec import inspect as shape

from evctl.core.kv import FLOAT_BYTES, KvLayout
from evctl.core.sampling import SamplingParams
from evctl.wire.messages import AnyMessage

MESSAGE_TYPES: tuple[type[Any], ...] = get_args(AnyMessage)

texts = st.text(max_size=12)
integers = st.one_of(st.integers(0, 200), st.integers(-(2**63), 2**64 - 1))
floats = st.floats(allow_nan=False)

samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 2**40),
    temperature=st.floats(0.0, 100.0),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=st.lists(st.text(min_size=1, max_size=5), max_size=16).map(tuple),
    stop_token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    forced=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
)

sizes = st.integers(1, 2**20)
layouts = st.builds(KvLayout, sizes, sizes, sizes, st.sampled_from(list(FLOAT_BYTES)), sizes)
valid = {SamplingParams: samplings, KvLayout: layouts}


def values(kind: shape.Type) -> st.SearchStrategy[Any]:
    """Values of one msgspec type description."""
    match kind:
        case shape.StructType(cls=cls):
            return valid[cls] if cls in valid else structs(cls)
        case shape.UnionType(types=types):
            return st.one_of([values(t) for t in types])
        case shape.VarTupleType(item_type=item):
            return st.lists(values(item), max_size=4).map(tuple)
        case shape.TupleType(item_types=items):
            return st.tuples(*(values(i) for i in items))
        case shape.DictType(key_type=key, value_type=value):
            return st.dictionaries(values(key), values(value), max_size=4)
        case shape.EnumType(cls=enum):
            assert issubclass(enum, Enum)
            return st.sampled_from(list(enum))
    simple: dict[type[shape.Type], st.SearchStrategy[Any]] = {
        shape.StrType: texts,
        shape.BytesType: st.binary(max_size=40),
        shape.IntType: integers,
        shape.FloatType: floats,
        shape.BoolType: st.booleans(),
        shape.NoneType: st.none(),
    }
    return simple[type(kind)]


def structs(cls: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Instances of a struct with every field drawn."""
    described = shape.type_info(cls)
    assert isinstance(described, shape.StructType)
    return st.builds(cls, **{f.name: values(f.type) for f in described.fields})


messages = st.one_of([structs(t) for t in MESSAGE_TYPES])
