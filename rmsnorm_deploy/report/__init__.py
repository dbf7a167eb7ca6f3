"""A report to look at: what was fused, where and how exactly, as one page without network, or in Markdown."""
