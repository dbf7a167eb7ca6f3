"""From ONNX to Relax: every norm becomes one call, and what TVM converts wrongly or not at all is converted here."""
