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

WORDS, LENGTH = 200, 24


def make_bert() -> torch.nn.Module:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2,
    )  # fmt: skip
    bert = BertForSequenceClassification(config)
    return get_peft_model(bert, LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))


def make_client(number: int, size: int = 60) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return sentences of random words and lengths. Most words are odd in one class, and even in the other."""
    rng = np.random.default_rng(number)
    labels = rng.integers(0, 2, size)
    odd = rng.random((size, LENGTH)) < 0.1 + 0.8 * labels[:, None]
    words = 2 * rng.integers(1, WORDS // 2 - 1, (size, LENGTH)) + odd
    mask = (np.arange(LENGTH) < rng.integers(LENGTH // 2, LENGTH + 1, (size, 1))).astype(np.int64)
    return {"input_ids": words * mask, "attention_mask": mask}, labels


def make_task(clients: int) -> fb.Task:
    return fb.Task(
        name="lora-bert",
        clients={f"phone-{number}": make_client(number) for number in range(clients)},
        test=make_client(10_000, 200),
        model=make_bert,
        optimizer="adamw(weight_decay=0.01)",
        learning_rate=0.01,
        clients_per_round=min(5, clients),
        epochs=1,
        eval_every=1,
        latency="femnist",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    task = make_task(options.clients)
    result = fb.run(task, "fedavg+1t", rounds=options.rounds, out="runs/lora-bert")
    bert = fb.load_model("runs/lora-bert", task)
    trained, every = bert.get_nb_trainable_parameters()
    sent = result.rounds["down_bytes"][0] // result.rounds["selected"][0]
    print(f"{every:,} parameters, {trained:,} trained, {sent:,} bytes to a client; accuracy {result.accuracy:.3f}")
    bert.save_pretrained("runs/lora-bert/adapter")  # the format of peft, which `PeftModel.from_pretrained` reads
