"""A trainer of DFlash drafters (block-diffusion speculative decoding, arXiv 2602.06036) on flex_attention.

Runs from the checkout as ``python -m trainer``; it is not part of the ``envguard`` distribution and knows
envguard only through its public call ``envguard.stamp``.
"""
