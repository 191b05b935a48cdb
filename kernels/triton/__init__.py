"""GPU kernels in Triton. Each function has a plain torch twin of the same signature in `kernels.reference`, its oracle.

What always holds, for every kernel here:
- Loads are turned to fp32 at once, arithmetic is fp32 (matrix products multiply in the inputs' type and sum in fp32),
  and a result is rounded once, when it is stored.
- Nothing is read from the device to decide about a launch: grids follow from shapes and from integers that the caller
  has on the host. So every launch can be captured in a CUDA graph.
- A row of a result depends on that row's inputs alone. With `deterministic=True`, also bitwise: tiles, splits and their
  order are then functions of the model's shapes, never of the number of rows in the call.
- Nothing outside a tensor's rows is read or written; block tables are read as far as a sequence's tokens reach.

The kernels are written for what Triton 3.6 and 3.9 share, and for its interpreter (TRITON_INTERPRET=1), in which the
tests run them on CPU tensors: no inline assembly, no libdevice, and bfloat16 operands are multiplied as fp32 there,
because the interpreter's own bfloat16 arithmetic works on bit patterns. This package imports torch and triton, never
the native extension.
"""
