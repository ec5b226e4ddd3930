"""PPO on CartPole in plain PyTorch: the loop of examples/04_ppo, with the same numbers drawn in the same order.

usage: ppo_cartpole.py [--steps N] [--seed N] [--compare FILE]

--compare: exit status 1 unless the weights are those of FILE, which `04_ppo graph N FILE.safetensors` wrote, bit by bit
"""

import argparse
import math
import sys
import time
from collections import deque

import torch
from torch import nn

ENVS, HORIZON, EPOCHS, MINIBATCH = 8, 32, 5, 64
GAMMA, LAMBDA, CLIP, VALUE_WEIGHT, LEARNING_RATE = 0.98, 0.8, 0.2, 0.5, 1e-3
SOLVED, EPISODES = 475.0, 100


class CartPole:
    """Several poles, the equations and limits of Gymnasium's CartPole-v1."""

    def __init__(self, count):
        self.poles = [self.start() for _ in range(count)]
        self.ages = [0] * count

    @staticmethod
    def start():
        return [0.1 * number - 0.05 for number in torch.rand(4, dtype=torch.float64).tolist()]

    @staticmethod
    def move(pole, right):
        x, speed, angle, spin = pole
        force = 10.0 if right else -10.0
        cosine, sine = math.cos(angle), math.sin(angle)
        push = (force + 0.05 * spin * spin * sine) / 1.1
        turn = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine * cosine / 1.1))
        pull = push - 0.05 * turn * cosine / 1.1
        return [x + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * turn]

    def state(self):
        return torch.tensor(self.poles, dtype=torch.float32)

    def step(self, actions):
        """Moves all poles; returns the states they reach, who fell, who ran out of time, and the ended episodes."""
        self.poles = [self.move(pole, action) for pole, action in zip(self.poles, actions)]
        self.ages = [age + 1 for age in self.ages]
        reached = self.state()
        fell = [abs(pole[0]) > 2.4 or abs(pole[2]) > 12 * 2 * math.pi / 360 for pole in self.poles]
        late = [age >= 500 and not down for age, down in zip(self.ages, fell)]
        returns = []
        for i, ends in enumerate(zip(fell, late)):
            if any(ends):
                returns.append(float(self.ages[i]))
                self.poles[i], self.ages[i] = self.start(), 0
        return reached, torch.tensor(fell), torch.tensor(late), returns


def network(outputs, gain):
    def layer(inputs, outputs, gain):
        linear = nn.Linear(inputs, outputs)
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        return linear

    first, second = layer(4, 64, math.sqrt(2)), layer(64, 64, math.sqrt(2))
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), layer(64, outputs, gain))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = network(2, 0.01)
        self.value = network(1, 1.0)

    def forward(self, state):
        return torch.cat([self.policy(state), self.value(state)], 1)


def ppo_loss(output, batch):
    chances = output.narrow(1, 0, 2).log_softmax(1).gather(1, batch["action"])
    ratio = (chances - batch["chances"]).exp()
    advantage = (batch["advantage"] - batch["advantage"].mean()) / (batch["advantage"].std() + 1e-8)
    gain = torch.min(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage).mean()
    return VALUE_WEIGHT * nn.functional.mse_loss(output.narrow(1, 2, 1), batch["return"]) - gain


@torch.no_grad()
def collect(agent, poles, returns):
    """HORIZON steps of all poles, as columns with a row per pole and step."""
    columns = {name: [] for name in ("state", "action", "chances", "value", "reward", "ends")}
    for _ in range(HORIZON):
        state = poles.state()
        output = agent(state)
        chances = output.narrow(1, 0, 2).log_softmax(1)
        action = torch.multinomial(chances.exp(), 1)
        reached, fell, late, ended = poles.step(action.flatten().tolist())
        reward = torch.ones(ENVS, 1)
        if late.any():  # the episode would have gone on: what it was worth stands for the rest
            reward += GAMMA * late.unsqueeze(1) * agent(reached).narrow(1, 2, 1)
        row = state, action, chances.gather(1, action), output.narrow(1, 2, 1), reward, (fell | late).unsqueeze(1)
        for column, value in zip(columns.values(), row):
            column.append(value)
        returns.extend(ended)
    value_after, later = agent(poles.state()).narrow(1, 2, 1), torch.zeros(ENVS, 1)
    advantages = []
    for value, reward, ends in zip(*(reversed(columns[name]) for name in ("value", "reward", "ends"))):
        goes_on = ends.logical_not()
        later = reward + GAMMA * value_after * goes_on - value + GAMMA * LAMBDA * later * goes_on
        advantages.insert(0, later)
        value_after = value
    batch = {name: torch.cat(columns[name]) for name in ("state", "action", "chances")}
    batch["advantage"] = torch.cat(advantages)
    batch["return"] = batch["advantage"] + torch.cat(columns["value"])
    return batch


def learn(agent, optimizer, batch):
    for _ in range(EPOCHS):
        for rows in torch.randperm(ENVS * HORIZON).split(MINIBATCH):
            part = {name: column.index_select(0, rows) for name, column in batch.items()}
            optimizer.zero_grad()
            ppo_loss(agent(part["state"]), part).backward()
            optimizer.step()


def compare(agent, path):
    from safetensors.torch import load_file

    others = load_file(path)
    differing = [name for name, value in agent.state_dict().items() if not torch.equal(value, others.pop(name))]
    print(f"weights of {path}: {f'other bits in {differing}' if differing or others else 'the same bits'}")
    sys.exit(1 if differing or others else 0)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    agent, poles, returns = Agent(), CartPole(ENVS), deque(maxlen=EPISODES)
    optimizer = torch.optim.Adam(agent.parameters(), lr=LEARNING_RATE, fused=True)
    steps, acting, learning, mean = 0, 0.0, 0.0, 0.0
    while steps < options.steps and (len(returns) < EPISODES or mean < SOLVED):
        start = time.process_time()
        batch = collect(agent, poles, returns)
        middle = time.process_time()
        learn(agent, optimizer, batch)
        acting, learning = acting + middle - start, learning + time.process_time() - middle
        steps += ENVS * HORIZON
        mean = sum(returns) / max(1, len(returns))
    print(f"{steps} steps, mean return {mean:.2f} over {len(returns)} episodes")
    print(f"CPU seconds: {acting:.2f} acting, {learning:.2f} learning")
    if options.compare:
        compare(agent, options.compare)


if __name__ == "__main__":
    main()
