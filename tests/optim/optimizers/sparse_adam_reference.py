"""What torch.optim.SparseAdam makes of a table of which each step touches some rows, one of them twice; make_references.py
writes it down. Rows and gradients are closed formulas, so that sparse_adam_test.cpp can make the same ones.
"""

import torch

torch.sparse.check_sparse_tensor_invariants.disable()  # torch asks for a word on it

ROWS, COLUMNS, STEPS = 9, 5, 60
CASES = {
    "plain": dict(lr=0.05),
    "default": dict(),
    "everything": dict(lr=0.1, betas=(0.7, 0.95), eps=1e-4, maximize=True),
}


def formula(shape, factor, shift, modulus, divisor):
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    return (((i * factor + shift) % modulus - modulus // 2) / divisor).reshape(shape)


def gradient(step):
    rows = torch.tensor([step % ROWS, step * step % ROWS, (step + 4) % ROWS, step % ROWS])
    values = formula((4, COLUMNS), 97, step * 61, 251, 128)
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, (ROWS, COLUMNS))


def references():
    """CASE.STEPS: the table after so many steps; CASE.exp_avg, CASE.exp_avg_sq: the state in the end."""
    for name, options in CASES.items():
        table = torch.nn.Parameter(formula((ROWS, COLUMNS), 7, 0, 11, 8))
        optimizer = torch.optim.SparseAdam([table], **options)
        for step in range(STEPS):
            table.grad = gradient(step)
            optimizer.step()
            if step + 1 in (1, 7, STEPS):
                yield f"{name}.{step + 1}", table.detach().clone()
        for slot in ("exp_avg", "exp_avg_sq"):
            yield f"{name}.{slot}", optimizer.state[table][slot].clone()
