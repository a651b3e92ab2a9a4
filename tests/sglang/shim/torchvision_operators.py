"""Lets torchvision be imported beside a torch that it was not built for.

Its compiled operators are not registered then, and it declares meta versions of two of them on
import, which fails. So they are defined just before. Imported by a line in a .pth file.
"""

from __future__ import annotations

import importlib.abc
import sys

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_kept: list[object] = []


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for schema in SCHEMAS:
                library.define(schema)
            _kept.append(library)  # its operators live as long as it does
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
