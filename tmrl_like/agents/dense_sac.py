"""The training step of the SAC agents, compiled for the CPU, for the networks of vectors that ship.

The losses are those of `tmrl_like.agents.sac`; their derivatives are written out. Shape names: N critics, M critics in
the target, B batch, A actions, I inputs of the critics; R rows of the actor: those of the next observations, and behind
them those of the observations.
"""

# Capital suffixes name a tensor's dimensions.
# ruff: noqa: N803, N806
from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch

from tmrl_like.agents.dense import ONE, ZERO, Dense, adam, blas, compiled, layers_of, move
from tmrl_like.types import Batch

_Array = np.ndarray[Any, Any]
_NEXT, _NOW = 0, 1


class DenseStep:
    """A training step of `SACAgent`: a function of a batch and of whether the actor is trained, too.

    For `SquashedGaussianActor` and `EnsembleCritic`. Actions are tanh(u), in [-1, 1].
    """

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.form: Any = None  # of what the buffers are made for
        blas()  # raises what is wrong with it

    def __deepcopy__(self, memo: dict[int, Any]) -> DenseStep:
        return DenseStep(copy.deepcopy(self.agent, memo))

    @torch.no_grad()
    def __call__(self, batch: Batch, with_actor: bool) -> dict[str, Any]:
        if self.form != (form := (len(batch.rew), self.agent.critics_in_target)):
            self.build(len(batch.rew))
            self.form = form
        return self.step(self.agent._scale_rewards(batch), with_actor)

    def build(self, num_rows: int) -> None:
        """Make the buffers for batches of this size."""
        self.num_rows = num_rows
        agent, actor, critic = self.agent, self.agent.actor, self.agent.critic
        num_features, num_inputs = actor.encoder.size, layers_of(critic)[0].weight.shape[1]
        self.features = _zeros(2, num_rows, num_features)
        self.inputs = _zeros(2, num_rows, num_inputs)
        seen = self.features.reshape(2 * num_rows, num_features)
        self.actor = Dense(layers_of(actor), seen, layers_of(actor, gradients=True), transposed=True)
        self.actor_next, self.actor_now = self.actor.part(slice(num_rows)), self.actor.part(slice(num_rows, None))
        self.critics = Dense(layers_of(critic), self.inputs[_NOW], layers_of(critic, gradients=True))
        self.target_layers = self.drawn_layers = layers_of(agent.critic_target)
        if agent._draws_critics:
            m = agent.critics_in_target
            self.drawn_layers = [layer.map(lambda p: _zeros(m, *p.shape[1:])) for layer in self.target_layers]
        self.targets = Dense(self.drawn_layers, self.inputs[_NEXT])
        self.log_prob_R = _zeros(2 * num_rows)
        self.target_B, self.discount_B = _zeros(num_rows), _zeros(num_rows)
        self.descend_actor, self.descend_critic = Descent(agent.actor_optimizer), Descent(agent.critic_optimizer)
        self.descend_temperature = Descent(agent.temperature_optimizer)
        size = actor.head.out_features // 2
        self.noise = torch.zeros(2, num_rows, size)
        self.noise_RA = self.noise.numpy().reshape(-1, size)
        self.act_RA, self.std_RA, *others = (_zeros(2 * num_rows, size) for _ in range(5))
        self.buffers = [self.actor.y[0], self.noise_RA, self.act_RA, self.std_RA, *others]
        self.taken_BA = _zeros(num_rows, size)
        self.limits = np.float32(actor.log_std_min), np.float32(actor.log_std_max)
        self.q_NB, self.d_q_NB = self.critics.y[..., 0], self.critics.d[..., 0]
        self.next_q_MB = self.targets.y[..., 0]

    def step(self, batch: Batch, with_actor: bool) -> dict[str, Any]:
        """Equations as in `tmrl_like.agents.sac`; the metrics are numbers."""
        agent, num_rows = self.agent, self.num_rows
        entropy_coef = agent.temperature.log_coef.exp().item()
        if (norm := agent.obs_norm) is not None and agent.ranks is not None:
            norm.update(norm.flatten(batch.obs), agent.ranks)
        elif norm is not None:
            count = norm.count.numpy()
            count += 1.0
            weight, scale, shift = 1.0 / min(count, norm.HORIZON), norm.scale.numpy(), norm.shift.numpy()
            which, means = norm.which.numpy(), (norm.mean.numpy(), norm.mean_square.numpy())
            _normalise(norm.flatten(batch.obs).numpy(), which, weight, *means, norm.FLOOR, scale, shift)
        self.see(_NEXT, batch.next_obs)
        self.see(_NOW, batch.obs)
        self.draw_noise(_NEXT)
        self.draw_critics()
        if with_actor:
            self.draw_noise(_NOW)
        (self.actor if with_actor else self.actor_next).forward()
        self.decide(2 * num_rows if with_actor else num_rows)

        self.value(_NEXT)
        if batch.discount is None:
            self.discount_B.fill(agent.gamma)
        discount_B = self.discount_B if batch.discount is None else batch.discount.numpy()
        rew_B, terminated_B = batch.rew.numpy(), batch.terminated.numpy()
        target = _td_target(
            rew_B, terminated_B, self.next_q_MB, self.log_prob_R, entropy_coef, discount_B, self.target_B
        )
        self.value(_NOW, self.taken(batch.act))
        loss, q = _critic_loss(self.q_NB, self.target_B, self.d_q_NB)
        self.critics.backward()
        agent.average_gradients(agent.critic_optimizer)
        self.descend_critic()
        metrics = {"loss_critic": loss, "q_mean": q, "q_target_mean": target}
        if with_actor:
            metrics |= self.train_actor(entropy_coef)
            if agent.actor_ema is not agent.actor:
                move(agent._flat_actor_ema.values, agent._flat_actor.values, 1.0 - agent.actor_polyak)
        move(agent._flat_critic_target.values, agent._flat_critic.values, 1.0 - agent.polyak)
        return metrics

    def train_actor(self, entropy_coef: float) -> dict[str, float]:
        """Eq. 7, and eq. 18 for the entropy coefficient."""
        agent = self.agent
        self.value(_NOW)
        log_prob_B = self.log_prob_R[self.num_rows :]
        q, log_prob = _value_of_policy(self.q_NB, log_prob_B, agent._draws_critics, self.d_q_NB)
        self.back_to_actor(entropy_coef / self.num_rows)
        self.actor_now.backward()
        learned = [agent.actor_optimizer]
        metrics = {"loss_actor": entropy_coef * log_prob - q, "entropy_nats": -log_prob, "entropy_coef": entropy_coef}
        if agent.learn_entropy_coef:
            log_coef = agent.temperature.log_coef
            excess = -log_prob - agent.target_entropy
            metrics["loss_entropy_coef"] = log_coef.item() * excess
            log_coef.grad.numpy()[...] = excess
            learned.append(agent.temperature_optimizer)
        agent.average_gradients(*learned)
        self.descend_actor()
        if agent.learn_entropy_coef:
            self.descend_temperature()
        return metrics

    def see(self, which: int, obs: Any) -> None:
        """What actor and critics see of observations."""
        encoder = self.agent.actor.encoder
        if encoder.one_hot is None:
            x, scale, shift = encoder.flatten(obs).numpy(), encoder.rescale.scale.numpy(), encoder.rescale.shift.numpy()
            _rescale(x, scale, shift, self.features[which])
        else:
            self.features[which] = encoder.forward(obs).numpy()
        self.inputs[which, :, : encoder.size] = self.features[which]

    def draw_critics(self) -> None:
        """Copy the target critics of this step."""
        members = self.agent._draw_critics()
        if members is not None:
            for drawn, layer in zip(self.drawn_layers, self.target_layers, strict=True):
                for to, values in zip(drawn, layer, strict=True):
                    np.take(values, members.numpy(), axis=0, out=to)

    def draw_noise(self, which: int) -> None:
        self.noise[which].normal_()

    def decide(self, num_rows: int) -> None:
        if num_rows < len(self.buffers[0]):
            *buffers, log_prob = (buffer[:num_rows] for buffer in (*self.buffers, self.log_prob_R))
        else:
            buffers, log_prob = self.buffers, self.log_prob_R
        outputs, noise, act, std, log_std, small, log = buffers
        np.clip(outputs[:, act.shape[1] :], *self.limits, out=log_std)
        np.exp(log_std, out=std)
        _draw(outputs, noise, std, act, small)
        np.exp(small, out=small)
        np.log(np.add(small, ONE, out=log), out=log)
        _squash(small, log, noise, log_std, act, log_prob)

    def taken(self, act: torch.Tensor) -> _Array:
        rescale, taken = self.agent.critic.rescale_act, self.taken_BA
        _rescale(act.reshape(self.num_rows, -1).float().numpy(), rescale.scale.numpy(), rescale.shift.numpy(), taken)
        return taken

    def value(self, which: int, act: _Array | None = None) -> None:
        if act is None:
            act = self.act_RA[which * self.num_rows :][: self.num_rows]
        self.inputs[which, :, -act.shape[1] :] = act
        (self.critics if which == _NOW else self.targets).forward()

    def back_to_actor(self, entropy_weight: float) -> None:
        self.critics.backward(learn=False, to_x=True)
        now = slice(self.num_rows, None)
        outputs, noise, act, std = (v[now] for v in (self.actor.y[0], self.noise_RA, self.act_RA, self.std_RA))
        _back_through_squash(
            self.critics.d_x, outputs, noise, *self.limits, act, std, entropy_weight, self.actor_now.d[0]
        )


def _zeros(*shape: int) -> _Array:
    return np.zeros(shape, np.float32)


class Descent:
    """`adam_step`, compiled."""

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self.optimizer = optimizer
        (self.parameter,) = optimizer.param_groups[0]["params"]
        self.decoupled = isinstance(optimizer, torch.optim.AdamW)
        self.state: Any = None

    def __call__(self) -> None:
        (group,) = self.optimizer.param_groups
        state = self.optimizer.state[self.parameter]
        if state is not self.state:  # the first time, or it was loaded
            self.state = state
            values, gradient = self.parameter.detach().numpy(), self.parameter.grad.numpy()
            moments = [state[name].numpy() for name in ("exp_avg", "exp_avg_sq")]
            largest = state["max_exp_avg_sq"].numpy() if group["amsgrad"] else _zeros(0)
            self.arrays, self.steps = (values, gradient, *moments, largest), state["step"].numpy()
        self.steps += 1
        rates = group["lr"], *group["betas"], group["eps"], group["weight_decay"], self.steps
        adam(*self.arrays, tuple(map(float, rates)), self.decoupled)


@compiled
def _normalise(
    x_BR: Any, which_U: Any, weight: float, mean_U: Any, square_U: Any, floor: float, scale_R: Any, shift_R: Any
) -> None:
    """`RunningNorm.update`."""
    num_rows, size = x_BR.shape[0], which_U.shape[0]
    total_U, squares_U = np.zeros(size), np.zeros(size)
    for b in range(num_rows):
        for u in range(size):
            x = np.float64(x_BR[b, which_U[u]])
            total_U[u] += x
            squares_U[u] += x * x
    for u in range(size):
        mean_U[u] += (total_U[u] / num_rows - mean_U[u]) * weight
        square_U[u] += (squares_U[u] / num_rows - square_U[u]) * weight
        scale = 1.0 / np.sqrt(max(square_U[u] - mean_U[u] * mean_U[u], floor * floor))
        scale_R[which_U[u]], shift_R[which_U[u]] = scale, -mean_U[u] * scale


@compiled
def _rescale(x_BI: Any, scale_I: Any, shift_I: Any, into_BI: Any) -> None:
    """Scaled and shifted."""
    for b in range(x_BI.shape[0]):
        for i in range(x_BI.shape[1]):
            into_BI[b, i] = x_BI[b, i] * scale_I[i] + shift_I[i]


@compiled
def _draw(outputs_RO: Any, noise_RA: Any, std_RA: Any, act_RA: Any, small_RA: Any) -> None:
    """Leave u = mean + std noise in the place of the action, and -2 |u|."""
    num_actions = noise_RA.shape[1]
    for r in range(noise_RA.shape[0]):
        for a in range(num_actions):
            u = outputs_RO[r, a] + std_RA[r, a] * noise_RA[r, a]
            act_RA[r, a], small_RA[r, a] = u, np.float32(-2.0) * abs(u)


@compiled
def _squash(small_RA: Any, log_RA: Any, noise_RA: Any, log_std_RA: Any, act_RA: Any, log_prob_R: Any) -> None:
    """From exp(-2 |u|), and log of 1 plus that: tanh(u) in the place of u, and log pi as in `squashed_log_prob`."""
    num_actions = noise_RA.shape[1]
    constant = np.float32(num_actions * (2.0 * math.log(2.0) + 0.5 * math.log(2.0 * math.pi)))
    for r in range(noise_RA.shape[0]):
        total = -constant
        for a in range(num_actions):
            u, noise = act_RA[r, a], noise_RA[r, a]
            tanh = (ONE - small_RA[r, a]) / (ONE + small_RA[r, a])
            act_RA[r, a] = tanh if u >= ZERO else -tanh
            total += np.float32(2.0) * (abs(u) + log_RA[r, a]) - log_std_RA[r, a] - np.float32(0.5) * noise * noise
        log_prob_R[r] = total


@compiled
def _back_through_squash(
    d_inputs_NBI: Any,
    outputs_BO: Any,
    noise_BA: Any,
    low: float,
    high: float,
    act_BA: Any,
    std_BA: Any,
    entropy_weight: float,
    d_outputs_BO: Any,
) -> None:
    """The derivative by the critics' inputs, and by each log pi -> that by mean and log std of u."""
    num_actions = act_BA.shape[1]
    first, weight = d_inputs_NBI.shape[2] - num_actions, np.float32(entropy_weight)
    for b in range(act_BA.shape[0]):
        for a in range(num_actions):
            d_act, act, log_std = ZERO, act_BA[b, a], outputs_BO[b, num_actions + a]
            for n in range(d_inputs_NBI.shape[0]):
                d_act += d_inputs_NBI[n, b, first + a]
            d_u = d_act * (ONE - act * act) + np.float32(2.0) * weight * act
            d_outputs_BO[b, a] = d_u
            inside = low <= log_std <= high
            d_outputs_BO[b, num_actions + a] = d_u * std_BA[b, a] * noise_BA[b, a] - weight if inside else ZERO


@compiled
def _td_target(
    rew_B: Any,
    terminated_B: Any,
    next_q_MB: Any,
    log_prob_B: Any,
    entropy_coef: float,
    discount_B: Any,
    target_B: Any,
) -> float:
    """Eq. 3 and 6; returns the mean."""
    total = 0.0
    for b in range(target_B.shape[0]):
        smallest = next_q_MB[0, b]
        for m in range(1, next_q_MB.shape[0]):
            smallest = min(smallest, next_q_MB[m, b])
        value = smallest - np.float32(entropy_coef) * log_prob_B[b]
        target_B[b] = rew_B[b] + discount_B[b] * (ONE - terminated_B[b]) * value
        total += target_B[b]
    return float(total / target_B.shape[0])


@compiled
def _critic_loss(q_NB: Any, target_B: Any, d_q_NB: Any) -> tuple[float, float]:
    """Eq. 5; leaves its derivative, returns loss and mean Q."""
    loss, total, share = 0.0, 0.0, ONE / np.float32(target_B.shape[0])
    for n in range(q_NB.shape[0]):
        for b in range(q_NB.shape[1]):
            error = q_NB[n, b] - target_B[b]
            d_q_NB[n, b] = error * share
            loss += 0.5 * error * d_q_NB[n, b]
            total += q_NB[n, b]
    return loss, total / q_NB.size


@compiled
def _value_of_policy(q_NB: Any, log_prob_B: Any, of_all: bool, d_q_NB: Any) -> tuple[float, float]:
    """Q, the mean over all critics or the smallest, on average, and log pi; leaves the derivative of minus Q."""
    total, log_prob, share = 0.0, 0.0, np.float32(-1.0 / q_NB.shape[1])
    for b in range(q_NB.shape[1]):
        log_prob += log_prob_B[b]
        smallest, num_smallest = q_NB[0, b], ZERO
        for n in range(q_NB.shape[0]):
            smallest = min(smallest, q_NB[n, b])
            total += q_NB[n, b] / q_NB.shape[0] if of_all else 0.0
        for n in range(q_NB.shape[0]):
            num_smallest += ONE if q_NB[n, b] == smallest else ZERO
        for n in range(q_NB.shape[0]):
            if of_all:
                d_q_NB[n, b] = share / np.float32(q_NB.shape[0])
            else:
                d_q_NB[n, b] = share / num_smallest if q_NB[n, b] == smallest else ZERO
        total += 0.0 if of_all else smallest
    return total / q_NB.shape[1], log_prob / q_NB.shape[1]
