"""What modules have beside tensors that a resume needs: get_extra_state(), and random generators."""

import warnings

import torch

from . import generators
from .host_numbers import OF_EACH_MODULE
from .trainers import Hook

_KINDS = (torch.Tensor, bool, int, float, str)


def extra_state(model):
    """The hooks that keep it in a trainer's checkpoints: one, or none."""
    own = {
        f"{name}._extra_state".lstrip("."): module
        for name, module in model.named_modules()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state
    }
    hooks = [ExtraState(own)] if own else []
    return [*hooks, Generators(model)] if generators_of(model) else hooks


def generators_of(model):
    """Those of Python, NumPy and torch that are attributes of its modules, or in lists, tuples and dicts that are."""
    found = {}
    for module in model.modules():
        for name, value in vars(module).items():
            if name in OF_EACH_MODULE:
                continue
            inside = value.values() if type(value) is dict else value if type(value) in (list, tuple) else (value,)
            found.update({id(part): part for part in inside if type(part) in generators.KINDS})
    return list(found.values())


class ExtraState(Hook):
    name = "extra_state"

    def __init__(self, modules):
        self.modules = modules

    def before_run(self, run):
        pass  # a hook has a point

    def state_dict(self):
        state = {}
        for name, module in self.modules.items():
            extra = module.get_extra_state()
            parts = {f"{name}.{key}": value for key, value in extra.items()} if isinstance(extra, dict) else {name: extra}
            if all(isinstance(value, _KINDS) for value in parts.values()):
                state.update(parts)
            else:
                warnings.warn(f"'{name}' is not in checkpoints: expected a tensor, number or text, or a dict of these, from get_extra_state()")
        return state

    def load_state_dict(self, state):
        for name, module in self.modules.items():
            parts = {key.removeprefix(f"{name}."): value for key, value in state.items() if key.startswith(f"{name}.")}
            if name in state or parts:
                module.set_extra_state(state[name] if name in state else parts)


class Generators(Hook):
    """Of rank 0: the others' generators begin anew at a resume."""

    name = "model_generators"

    def __init__(self, model):
        self.model, self.loaded, self.is_main = model, None, None

    def before_run(self, run):
        self.is_main = run.is_main
        self.restore()

    def state_dict(self):
        return {"states": generators.states(generators_of(self.model)) if self.loaded is None else self.loaded}

    def load_state_dict(self, state):
        self.loaded = state.get("states")
        if self.is_main is not None:
            self.restore()

    def restore(self):
        if self.is_main and self.loaded is not None:
            generators.restore(generators_of(self.model), self.loaded, "the model")
        self.loaded = None
