"""The grammar: every spelling of a norm, stage by stage.

    reduction    ReduceMean, ReduceL2 ... of a square (square.py), perhaps of the leading features only (leading.py)
    statistic    from the mean square to the RMS or its inverse; keepdims.py has its shape
    normalised   x / rms
    output       Casts, scale, bias

A norm takes one way through each. engine.py follows them, ending.py says which operator the result is.
"""

from rmsnorm_deploy.recognise import keepdims, normalised, output, reduction, statistic

OPENINGS = reduction.OPENINGS
"""The reductions that open a candidate, by operator."""
ALTERNATIVES = (*statistic.ALTERNATIVES, *keepdims.ALTERNATIVES, *normalised.ALTERNATIVES, *output.ALTERNATIVES)
"""Every alternative after the reduction, in the order in which they are tried."""
