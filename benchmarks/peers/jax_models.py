"""The models of models.py as functions of the weights that PyTorch gave them, images as NHWC, which XLA likes best."""

import jax
import jax.numpy as jnp
from jax import lax


class Net:
    """Weights and buffers by PyTorch's names, with the layers that read them."""

    def __init__(self, weights, buffers, key=None):
        self.weights, self.buffers, self.key = weights, dict(buffers), key

    def __getitem__(self, name):
        return self.weights[name]

    def count(self, name):
        return len({key.split(".")[1] for key in self.weights if key.startswith(name + ".")})

    def linear(self, name, x):
        return x @ self[name + ".weight"].T + self[name + ".bias"]

    def layer_norm(self, name, x):
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return (x - mean) * lax.rsqrt(variance + 1e-5) * self[name + ".weight"] + self[name + ".bias"]

    def batch_norm(self, name, x):
        mean, variance, count = x.mean((0, 1, 2)), x.var((0, 1, 2)), x.size // x.shape[3]
        for key, value in ("mean", mean), ("var", variance * count / (count - 1)):
            key = f"{name}.running_{key}"
            self.buffers[key] = 0.9 * self.buffers[key] + 0.1 * value
        return (x - mean) * (lax.rsqrt(variance + 1e-5) * self[name + ".weight"]) + self[name + ".bias"]

    def conv(self, name, x, stride=1):
        kernel = self[name + ".weight"]
        padding = [(kernel.shape[0] // 2,) * 2] * 2 if stride != kernel.shape[0] else "VALID"
        x = lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return x + self[name + ".bias"] if name + ".bias" in self.weights else x

    def conv_norm(self, number, x, stride=1, prefix=""):
        return self.batch_norm(f"{prefix}norm{number}", self.conv(f"{prefix}conv{number}", x, stride))

    def dropout(self, x, rate):
        self.key, key = jax.random.split(self.key)
        return jnp.where(jax.random.bernoulli(key, 1 - rate, x.shape), x / (1 - rate), 0)

    def attention(self, name, x, causal, heads=4):
        samples, length, width = x.shape
        q, k, v = (part.reshape(samples, length, heads, -1) for part in
                   jnp.split(self.linear(name + "qkv", x), 3, axis=-1))
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        return self.linear(name + "out", mixed.reshape(samples, length, width))

    def mlp(self, name, x, approximate):
        return self.linear(name + "down", jax.nn.gelu(self.linear(name + "up", x), approximate=approximate))


def max_pool(x, window=2, stride=2, padding=0):
    edges = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, window, window, 1), (1, stride, stride, 1), edges)


def Mlp(net, x):
    last = max(int(name.split(".")[1]) for name in net.weights)
    for layer in range(0, last, 2):
        x = jax.nn.relu(net.linear(f"layers.{layer}", x))
    return net.linear(f"layers.{last}", x)


def Gpt(net, x):
    x = net["tokens.weight"][x] + net["positions.weight"][: x.shape[1]]
    for i in range(net.count("blocks")):
        name = f"blocks.{i}."
        x = x + net.attention(name, net.layer_norm(name + "norm1", x), causal=True)
        x = x + net.mlp(name, net.layer_norm(name + "norm2", x), approximate=True)
    return net.layer_norm("norm", x) @ net["tokens.weight"].T


def SmallCnn(net, x):
    x = max_pool(jax.nn.relu(net.conv_norm(1, x)))
    x = max_pool(jax.nn.relu(net.conv_norm(2, x)))
    return net.linear("head", net.dropout(x.transpose(0, 3, 1, 2).reshape(len(x), -1), 0.1))


def Lstm(net, x):
    gates = net["tokens.weight"][x] @ net["lstm.weight_ih_l0"].T + net["lstm.bias_ih_l0"] + net["lstm.bias_hh_l0"]

    def step(state, gates):
        h, c = state
        i, f, g, o = jnp.split(gates + h @ net["lstm.weight_hh_l0"].T, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((len(x), gates.shape[-1] // 4))
    return net.linear("head", lax.scan(step, (zeros, zeros), gates.swapaxes(0, 1))[1].swapaxes(0, 1))


def Vit(net, x):
    x = net.conv("patches", x, stride=4).reshape(len(x), -1, net["cls"].shape[-1])
    x = jnp.concatenate([jnp.broadcast_to(net["cls"], (len(x), 1, x.shape[-1])), x], 1) + net["positions"]
    for i in range(net.count("layers")):
        name = f"layers.{i}."
        x = x + net.attention(name, net.layer_norm(name + "norm1", x), causal=False)
        x = x + net.mlp(name, net.layer_norm(name + "norm2", x), approximate=False)
    return net.linear("head", net.layer_norm("norm", x)[:, 0])


def Bert(net, x):
    x = net["tokens.weight"][x] + net["positions.weight"][: x.shape[1]]
    x = net.dropout(net.layer_norm("norm", x), 0.1)
    for i in range(net.count("layers")):
        name = f"layers.{i}."
        x = net.layer_norm(name + "norm1", x + net.dropout(net.attention(name, x, causal=False), 0.1))
        x = net.layer_norm(name + "norm2", x + net.dropout(net.mlp(name, x, approximate=False), 0.1))
    return net.linear("head", x)


def ResNet18(net, x):
    x = max_pool(jax.nn.relu(net.batch_norm("norm", net.conv("conv", x, 2))), 3, 2, 1)
    for i in range(net.count("blocks")):
        name = f"blocks.{i}."
        short = f"{name}conv3.weight" in net.weights
        y = jax.nn.relu(net.conv_norm(1, x, 2 if short else 1, name))
        y = net.conv_norm(2, y, 1, name)
        x = jax.nn.relu(y + (net.conv_norm(3, x, 2, name) if short else x))
    return net.linear("head", x.mean((1, 2)))


def UNet(net, x):
    def twice(name, x):
        return jax.nn.relu(net.conv_norm(2, jax.nn.relu(net.conv_norm(1, x, 1, name)), 1, name))

    def up(name, x):  # windows of 2 that do not overlap
        y = jnp.einsum("nhwc,ijoc->nhiwjo", x, net[name + ".weight"])
        return y.reshape(len(x), 2 * x.shape[1], 2 * x.shape[2], -1) + net[name + ".bias"]

    one = twice("down1.", x)
    two = twice("down2.", max_pool(one))
    x = up("up2", twice("middle.", max_pool(two)))
    x = up("up1", twice("join2.", jnp.concatenate([two, x], 3)))
    return net.conv("head", twice("join1.", jnp.concatenate([one, x], 3)))


def from_torch(tensors):
    """Of images, convolutions and their like the channels come last."""
    def convert(name, tensor):
        order = (2, 3, 1, 0) if name.endswith("weight") else (0, 2, 3, 1)
        return jnp.array((tensor.permute(order) if tensor.dim() == 4 else tensor).detach().numpy())

    return {name: convert(name, tensor) for name, tensor in tensors}
