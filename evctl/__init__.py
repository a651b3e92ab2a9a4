"""evctl: control plane and operator surface of an agent-aware LLM serving system."""

__version__ = "0.1.0"
