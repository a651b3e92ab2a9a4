"""`evctl bench eviction`: what each eviction order loses on recorded conversations."""
