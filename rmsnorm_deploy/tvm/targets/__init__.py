"""What models are compiled for: one file for each kind of GPU in ``gpus``, processors, and devices."""
