"""Operations of models behind one dispatch by device: `torch/` is the reference, `cpu/` is compiled."""
