"""
GPyTorch's own notebooks, as short scripts of our own writing: in `original` with GPyTorch's strategies, in `swapped`
with ours. `diff -r original swapped` shows what a swap takes. Where the first thing that one would write fails, it
stands in `attempts.py`.
"""
