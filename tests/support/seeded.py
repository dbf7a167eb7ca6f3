"""Faults put into one norm of a fused model, as a fuser or an exporter could make them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rmsnorm_deploy.op import DOMAIN, Op
from rmsnorm_deploy.op.body import function_body
from rmsnorm_deploy.op.definition import ALL_FEATURES


class Norm:
    """One norm of a copy of a fused model, to be spoilt."""

    def __init__(self, fused, which=None):
        self.model = onnx.ModelProto()
        self.model.CopyFrom(fused)
        self.graph = self.model.graph
        ours = [i for i, n in enumerate(self.graph.node) if n.domain == DOMAIN]
        self.number = len(ours) // 2 if which is None else which
        self.node = self.graph.node[ours[self.number]]
        self.other = self.graph.node[ours[self.number - 1]]
        self.opset = next(o.version for o in self.model.opset_import if o.domain == "")
        self.attributes = {a.name: helper.get_attribute_value(a) for a in self.node.attribute}
        self.type = self.attributes["output_type"]
        self.y = self.node.output[0]
        self.width = None
        for value in [*self.graph.value_info, *self.graph.output]:
            if value.name == self.y:
                self.width = value.type.tensor_type.shape.dim[-1].dim_value

    def set(self, name, value):
        for attribute in self.node.attribute:
            if attribute.name == name:
                attribute.CopyFrom(helper.make_attribute(name, value))
                return
        self.node.attribute.append(helper.make_attribute(name, value))

    def constant(self, name, array):
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def replace(self, nodes):
        at = next(i for i, n in enumerate(self.graph.node) if n is self.node or n == self.node)
        rest = [*self.graph.node[:at], *nodes, *self.graph.node[at + 1 :]]
        rest = [onnx.NodeProto.FromString(n.SerializeToString()) for n in rest]
        del self.graph.node[:]
        self.graph.node.extend(rest)

    def total(self):
        """The value that is normalised, and the nodes that make it."""
        if self.node.op_type != "AddRMSNorm":
            return self.node.input[0], []
        x, residual, _ = self.node.input
        return self.node.output[1], [helper.make_node("Add", [x, residual], [self.node.output[1]])]

    def general(self, bias=-0.0, **attributes):
        """The norm as a GeneralRMSNorm with these attributes, and a bias."""
        x, nodes = self.total()
        dtype = helper.tensor_dtype_to_np_dtype(self.type)
        bias = self.constant("seeded_bias", np.full(self.width, bias, dtype))
        given = {k: v for k, v in self.attributes.items()} | {
            "epsilon_outside": 0.0,
            "rms_floor": 0.0,
            "partial_size": [ALL_FEATURES],
        }
        if not any(f.name == "GeneralRMSNorm" for f in self.model.functions):
            self.model.functions.append(function_body(Op.GENERAL_RMS_NORM, self.opset, 1))
        node = helper.make_node(
            "GeneralRMSNorm", [x, self.node.input[-1], bias], [self.y], domain=DOMAIN, **(given | attributes)
        )
        self.replace([*nodes, node])

    def written(self, statistics=TensorProto.FLOAT, rounded=None, width=None):
        """The norm in standard operators; ``width`` divides the sum of squares."""
        x, nodes = self.total()
        rounded = self.attributes["scale_type"] if rounded is None else rounded
        dtype = helper.tensor_dtype_to_np_dtype(statistics)
        axes = self.constant("seeded_axes", np.array([-1], np.int64))
        size = self.constant("seeded_size", np.array(width or self.width, dtype))
        epsilon = self.constant("seeded_epsilon", np.array(self.attributes["epsilon"], dtype))

        def node(op, inputs, output, **attributes):
            nodes.append(helper.make_node(op, inputs, [output], **attributes))

        node("Cast", [x], "s_c", to=statistics)
        node("Mul", ["s_c", "s_c"], "s_square")
        node("ReduceSum", ["s_square", axes], "s_sum", keepdims=1)
        node("Div", ["s_sum", size], "s_mean")
        node("Add", ["s_mean", epsilon], "s_added")
        node("Sqrt", ["s_added"], "s_rms")
        node("Div", ["s_c", "s_rms"], "s_wide")
        node("Cast", ["s_wide"], "s_n", to=rounded)
        node("Cast", [self.node.input[-1]], "s_scale", to=rounded)
        node("Mul", ["s_n", "s_scale"], "s_y")
        node("Cast", ["s_y"], self.y, to=self.type)
        self.replace(nodes)

    def scale_values(self, change):
        """Other values of the scale, as an initializer of its own."""
        name = self.node.input[-1]
        found = {t.name: t for t in self.graph.initializer}
        if name in found:
            values = change(numpy_helper.to_array(found[name]))
            found[name].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), name))
            return
        maker = next(n for n in self.graph.node if name in n.output)  # such as 1 + weight
        while not any(v in found and numpy_helper.to_array(found[v]).size > 1 for v in maker.input):
            maker = next(n for n in self.graph.node if any(v in n.output for v in maker.input))
        weight = next(v for v in maker.input if v in found and numpy_helper.to_array(found[v]).size > 1)
        values = change(numpy_helper.to_array(found[weight]))
        found[weight].CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), weight))

    def residual(self, how):
        x, residual, scale = self.node.input
        y, total = self.node.output
        kept = {k: v for k, v in self.attributes.items()}
        first = helper.make_node("Add", [x, residual], [total])
        if how == "missing":
            nodes = [first, helper.make_node("RMSNorm", [x, scale], [y], domain=DOMAIN, **kept)]
        else:
            nodes = [
                first,
                helper.make_node("AddRMSNorm", [total, residual, scale], [y, "s_twice"], domain=DOMAIN, **kept),
            ]
        if not any(f.name == "RMSNorm" for f in self.model.functions):
            self.model.functions.append(function_body(Op.RMS_NORM, self.opset, 1))
        self.replace(nodes)

    def other_type(self):
        to = TensorProto.FLOAT if self.type != TensorProto.FLOAT else TensorProto.FLOAT16
        node = onnx.NodeProto()
        node.CopyFrom(self.node)
        node.output[0] = "s_y"
        self.replace([node, helper.make_node("Cast", ["s_y"], [self.y], to=to)])

    def swap_scales(self):
        mine, theirs = self.node.input[-1], self.other.input[-1]
        self.node.input[len(self.node.input) - 1] = theirs
        self.other.input[len(self.other.input) - 1] = mine


def _third(values):
    return np.where(np.arange(values.size) == 3, values * 1.02, values).astype(values.dtype)


def _flip_rounding(n):
    now = n.attributes["scale_type"]
    n.set("scale_type", TensorProto.FLOAT16 if now == TensorProto.FLOAT else TensorProto.FLOAT)


def _another_cast(n):
    now = n.attributes["scale_type"]
    n.written(rounded=TensorProto.FLOAT16 if now == TensorProto.FLOAT else TensorProto.FLOAT)


# what is done to the norm, and a word of the guess
FAULTS = {
    "epsilon twice": (lambda n: n.set("epsilon", 2 * n.attributes["epsilon"]), "epsilon"),
    "epsilon ten times": (lambda n: n.set("epsilon", 10 * n.attributes["epsilon"]), "epsilon"),
    "epsilon 0": (lambda n: n.set("epsilon", 0.0), "epsilon"),
    "epsilon outside": (lambda n: n.general(epsilon=0.0, epsilon_outside=n.attributes["epsilon"]), "epsilon"),
    "epsilon as a floor": (lambda n: n.general(epsilon=0.0, rms_floor=n.attributes["epsilon"] ** 0.5), "epsilon"),
    "scale of another layer": (lambda n: n.node.input.__setitem__(-1, n.other.input[-1]), "scale"),
    "scale off by one row": (lambda n: n.scale_values(lambda v: np.roll(v, 1)), "scale"),
    "one element of the scale": (lambda n: n.scale_values(_third), "scale"),
    "scale left out": (lambda n: n.scale_values(np.ones_like), "scale"),
    "wrong axis": (lambda n: n.set("axes", [-2]), "axis"),
    "both axes": (lambda n: n.set("axes", [-2, -1]), "axis"),
    "partial size off by one": (lambda n: n.general(partial_size=[n.width - 1]), "partial size"),
    "mean over one feature less": (lambda n: n.written(width=n.width - 1), "statistic"),
    "rounding order": (_flip_rounding, "rounding"),
    "a cast missing or too many": (_another_cast, "rounding"),
    "statistics in 16 bits": (lambda n: n.written(statistics=TensorProto.FLOAT16), "rounding"),
    "residual missing": (lambda n: n.residual("missing"), "residual"),
    "residual twice": (lambda n: n.residual("twice"), "residual"),
    "bias of 1e-2": (lambda n: n.general(bias=1e-2), "bias"),
    "scales of two norms swapped": (Norm.swap_scales, "scale"),
    "another type": (Norm.other_type, "type"),
}
