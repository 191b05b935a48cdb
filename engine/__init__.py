"""The inference engine: paged KV cache, scheduler, sampler, models. Import from its modules."""
