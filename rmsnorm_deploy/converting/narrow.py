"""Norms that were spelled out in 16 bits, written again so that they round once.

Such a LayerNorm rounds the normalised value, its product with the scale, and the sum with the bias. The norm that it
becomes is written as that of an operator is: 32 bits from the beginning to the end, and the bias in it.
"""

from __future__ import annotations

import onnx_ir as ir

from rmsnorm_deploy.converting.writing import Writer, take_over
from rmsnorm_deploy.fusing.names import Names
from rmsnorm_deploy.model.dead import remove_dead
from rmsnorm_deploy.model.graphs import opset_of
from rmsnorm_deploy.op import SIXTEEN_BIT, Op
from rmsnorm_deploy.op.definition import NormParameters
from rmsnorm_deploy.recognise import checks
from rmsnorm_deploy.recognise.engine import facts_of, recognise
from rmsnorm_deploy.recognise.facts import Facts, is_op, node_name
from rmsnorm_deploy.recognise.match import Match
from rmsnorm_deploy.recognise.refusal import Refusal
from rmsnorm_deploy.recognise.scopes import scopes

FLOAT = ir.DataType.FLOAT


def round_once(model: ir.Model, rest: set[ir.Node], names: Names, *, marks: bool) -> None:
    """Write the norms of ``model`` again that have 16 bits inside. One in an order that nobody knows stays as it is.

    Args:
        model: converted already; it is changed.
        rest: what is left of the LayerNorms that were spelled out: the readers of the value without a mean.
        names: gives names.
        marks: as for :class:`rmsnorm_deploy.converting.writing.Writer`.
    """
    if not rest:
        return
    graphs = scopes(model)
    facts = facts_of(model, None, graphs)
    writer = Writer(facts, names, opset_of(model), model.graph, marks=marks)
    found = [norm for norm in map(_alone, recognise(model, None, graphs)[0]) if not rest.isdisjoint(norm.nodes)]
    loose, now = [], dict[ir.Value | None, ir.Value]()
    for norm in found:
        if not _is_narrow(facts, norm):
            continue
        end, bias = _bias_behind(facts, norm) or (norm.output.producer(), None)
        assert end is not None
        # one norm may read what another has given
        x, scale = now.get(norm.x, norm.x), now.get(norm.scale, norm.scale)
        kind = ir.DataType(norm.parameters.output_type)
        nodes = writer.norm(node_name(end), x, norm.parameters.epsilon, scale, bias, output=kind)
        assert end.graph is not None
        end.graph.insert_before(end, nodes)
        now[end.outputs[0]] = nodes[-1].outputs[0]
        take_over(end.outputs[0], nodes[-1].outputs[0])
        loose += [*norm.nodes, end]
    remove_dead(loose)


def _alone(match: Match) -> Match:
    """The norm without what an operator of ours would take in beside it."""
    while match.plain is not None:
        match = match.plain
    return match


def _is_narrow(facts: Facts, norm: Match) -> bool:
    """Whether a norm of the last dimension is one of 16 bits, and nothing but that."""
    p = norm.parameters
    if p.output_type not in SIXTEEN_BIT or norm.factor != 1.0 or norm.references:
        return False
    if p != NormParameters(Op.RMS_NORM, p.output_type, axes=p.axes, epsilon=p.epsilon, scale_type=p.scale_type):
        return False
    if p.axes != (-1,) and (norm.rank is None or p.axes != (norm.rank - 1,)):
        return False
    narrow = (ir.DataType(p.output_type), FLOAT)
    return all(facts.dtype(value) in narrow for value in (norm.x, norm.scale) if value is not None)


def _bias_behind(facts: Facts, norm: Match) -> tuple[ir.Node, ir.Value] | None:
    """The addition of a bias that is all that reads a norm, and the bias."""
    uses = list(norm.output.uses())
    if len(uses) != 1 or norm.output.is_graph_output():
        return None
    (node, index), *_ = uses
    bias = node.inputs[1 - index] if is_op(node, "Add") and len(node.inputs) == 2 else None
    if bias is None or not facts.is_constant_expression(bias) or facts.dtype(bias) != norm.parameters.output_type:
        return None
    try:
        checks.scale_broadcasts(facts, bias, norm.x, norm.parameters.axes)
    except Refusal:
        return None
    return node, bias
