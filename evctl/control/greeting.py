"""Which engines may join: Hello against what this cluster is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from evctl.control.frontdoor import ModelCard
from evctl.control.settings import ControlSettings
from evctl.control.statedir import StateDirectory, model_files
from evctl.core.kv import KvLayout
from evctl.wire.messages import Hello, Refused


class Identity(msgspec.Struct, frozen=True):
    """What all engines of a cluster share: fixed by the first, until none is left."""

    card: ModelCard
    layout: KvLayout


class Doorkeeper:
    """Checks a Hello. `identity` is None until an engine was let in."""

    def __init__(self, settings: ControlSettings, directory: StateDirectory) -> None:
        self.identity: Identity | None = None
        self._settings = settings
        self._directory = directory

    def examine(
        self, hello: Hello, public_key: bytes, keys: Mapping[str, bytes]
    ) -> Identity | Refused:
        """The cluster's identity if the engine belongs to it, else why not."""
        settings, node = self._settings, hello.peer.node
        if hello.cluster != settings.cluster:
            return Refused(
                "EV-1331", f"this is cluster {settings.cluster!r}, not {hello.cluster!r}"
            )
        if keys.get(node) != public_key or hello.peer.public_key != public_key:
            return Refused("EV-1332", f"the name {node!r} belongs to another key")
        if node not in settings.nodes:
            return Refused("EV-1333", f"no node of this cluster is named {node!r}")
        if hello.model != settings.model:
            return Refused("EV-1334", f"this cluster serves {settings.model}, not {hello.model}")
        if hello.layout.block_tokens != settings.block_tokens:
            why = f"blocks have {settings.block_tokens} tokens here, not "
            return Refused("EV-1336", why + str(hello.layout.block_tokens))
        if self.identity is not None:
            return _compare(self.identity, hello) or self.identity
        return self._introduce(hello)

    def _introduce(self, hello: Hello) -> Identity | Refused:
        """The first engine says what the cluster is; its model's files say the rest."""
        folder = self._directory.model_directory(hello.peer.node, hello.weights_hash)
        files = model_files(folder)
        if files is None:
            return Refused("EV-1338", f"no prepared model lies in {folder} for the gateway")
        if files.weights_hash != hello.weights_hash:
            why = f"the model in {folder} has weights {files.weights_hash[:12]}, "
            return Refused("EV-1335", why + f"this engine {hello.weights_hash[:12]}")
        card = ModelCard(
            name=hello.model,
            directory=str(folder),
            weights_hash=hello.weights_hash,
            numerics=hello.numerics,
            block_tokens=hello.layout.block_tokens,
            context_tokens=files.context_tokens,
            vocab_size=files.vocab_size,
            eos_ids=files.eos_ids,
        )
        self.identity = Identity(card, hello.layout)
        return self.identity


def _compare(identity: Identity, hello: Hello) -> Refused | None:
    card = identity.card
    if hello.weights_hash != card.weights_hash:
        why = (
            f"the cluster's weights are {card.weights_hash[:12]}, yours {hello.weights_hash[:12]}"
        )
        return Refused("EV-1335", why)
    if hello.layout != identity.layout:
        return Refused("EV-1336", "the cluster's KV layout is another one")
    if hello.numerics != card.numerics:
        why = f"the cluster's numerics are {card.numerics}, yours {hello.numerics}"
        return Refused("EV-1337", why)
    return None
