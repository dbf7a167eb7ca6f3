"""Questions about a model or a machine, each answered as data: verify, bench, doctor, demo."""
