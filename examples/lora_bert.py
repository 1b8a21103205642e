"""Fine-tune a BERT with LoRA: only the adapters and the classifier travel.

The model is a small BERT from a configuration, so nothing is downloaded. For a pretrained one, return
`AutoModelForSequenceClassification.from_pretrained("bert-base-uncased", num_labels=2)` in `make_bert`.
"""

import argparse

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import fedbalancer as fb

WORDS, LENGTH, PAD = 200, 24, 0


class Classifier(torch.nn.Module):
    """Calls the model with a mask for padding, and returns its scores."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.bert(input_ids=tokens, attention_mask=(tokens != PAD).long()).logits


def make_bert() -> torch.nn.Module:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    bert = BertForSequenceClassification(config)
    return Classifier(get_peft_model(bert, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])))


def make_client(number: int, size: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Sentences of random words and lengths; the label says whether positive words (the odd ones) are the majority."""
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 2, size)
    words = 2 * rng.integers(1, WORDS // 2, (size, LENGTH)) + (rng.random((size, LENGTH)) < 0.2 + 0.6 * labels[:, None])
    lengths = rng.integers(LENGTH // 2, LENGTH + 1, (size, 1))
    return np.where(np.arange(LENGTH) < lengths, np.minimum(words, WORDS - 1), PAD), labels


def make_task(clients: int) -> fb.Task:
    return fb.Task(
        name="lora-bert",
        clients={f"phone-{number}": make_client(number) for number in range(clients)},
        test=make_client(10_000, 200),
        model=make_bert,
        clients_per_round=min(5, clients),
        epochs=1,
        learning_rate=0.3,
        eval_every=1,
        latency="flops",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    task = make_task(options.clients)
    result = fb.run(task, "fedbalancer", rounds=options.rounds, out="runs/lora-bert")
    bert = fb.load_model("runs/lora-bert", task).bert
    trained, every = bert.get_nb_trainable_parameters()
    sent = result.rounds["down_bytes"][0] // result.rounds["selected"][0]
    print(f"{every:,} parameters, {trained:,} trained, {sent:,} bytes to a client; accuracy {result.accuracy:.3f}")
    bert.save_pretrained("runs/lora-bert/adapter")  # the format of peft, which `PeftModel.from_pretrained` reads
