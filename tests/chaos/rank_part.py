"""One of several trainers, as torchrun starts it: `rank_part.py TRANSPORT FOLDER PORT`."""

import logging
import sys
from pathlib import Path

import torch
from chaos_rig import Place
from kit.fakes import CountingAgent


class AveragingAgent(CountingAgent):
    """A `CountingAgent` whose weights change by gradients averaged over all ranks."""

    def train(self, batch):
        self.steps += 1
        bias = self.actor.layer.bias
        bias.grad = torch.ones_like(bias)
        self.average_gradients(self.actor)
        with torch.no_grad():
            bias.add_(bias.grad)
        return {"loss": float(self.steps)}


def main():
    transport, folder, port = sys.argv[1:]
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    place = Place(transport, Path(folder), int(port))
    training = {"training_agent_cls": AveragingAgent}
    with place.make_trainer(
        checkpoint_path=place.checkpoint, name=None, training=training
    ) as trainer:
        trainer.run()


if __name__ == "__main__":
    main()
