"""Our own torch engine: Llama-shaped models, paged KV, exact float32."""
