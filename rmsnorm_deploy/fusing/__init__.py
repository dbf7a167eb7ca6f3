"""From what recognition found to a model with one node for each norm: plan, apply, report, forms of output."""
