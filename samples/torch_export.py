"""From a PyTorch module to a fused ONNX file: the fuser as three lines behind torch.onnx.export.

python samples/torch_export.py [OUTPUT.onnx]
"""

import sys

import torch

import rmsnorm_deploy


class Block(torch.nn.Module):
    """A residual block with a norm in front, as in every Llama-like model; the norm is written out by hand."""

    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.linear = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        normalised = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x + self.linear(self.weight * normalised)


def main():
    output = sys.argv[1] if len(sys.argv) > 1 else "fused.onnx"
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(64), Block(64)).eval()
    x = torch.randn(1, 8, 64)
    tokens = torch.export.Dim("tokens", min=1, max=4096)
    program = torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=({1: tokens},), verbose=False)

    # the three lines: program.model is an onnx_ir.Model, and so is the result
    fused, report = rmsnorm_deploy.fuse(program.model)
    print(report.summary())
    rmsnorm_deploy.save(fused, output, overwrite=True)

    import onnxruntime

    options = onnxruntime.SessionOptions()
    try:
        rmsnorm_deploy.register(options)
    except rmsnorm_deploy.MissingEnvironment as error:
        print(f"by the function bodies: {error.message}")
    session = onnxruntime.InferenceSession(output, options, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = model(x).numpy()
    got = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    difference = float(abs(got - expected).max())
    print(f"largest difference from PyTorch: {difference:.1e}")
    return 0 if len(report.fused) == 2 and difference < 1e-5 else 1


if __name__ == "__main__":
    sys.exit(main())
