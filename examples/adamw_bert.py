"""Train a tiny BERT with SGD at four rates, and with AdamW. Only AdamW learns. Nothing is downloaded.

python examples/adamw_bert.py
"""

import warnings

import numpy as np
from transformers import BertConfig, BertForSequenceClassification

import fedbalancer as fb

WORDS, LENGTH, NEEDLE = 16, 8, 1


def sentences(count, seed):
    """Random words; the label says whether the needle is among them."""
    rng = np.random.default_rng(seed)
    tokens, labels = rng.integers(3, WORDS, size=(count, LENGTH)), rng.integers(2, size=count)
    tokens[np.arange(count)[labels == 1], rng.integers(LENGTH, size=int(labels.sum()))] = NEEDLE
    return tokens, labels


def bert():
    return BertForSequenceClassification(BertConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=LENGTH, num_labels=2,
    ))  # fmt: skip


task = fb.Task(
    clients={f"phone-{number}": sentences(60, number) for number in range(6)}, test=sentences(300, 99), model=bert,
    epochs=1, clients_per_round=6, rounds=8, eval_every=8, latency="har",
)  # fmt: skip

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for optimizer, rate in (*(("sgd", rate) for rate in (0.01, 0.03, 0.1, 0.3)), ("adamw(weight_decay=0.01)", 0.003)):
        result = fb.run(task, "fedavg+wfa", settings={"optimizer": optimizer, "learning_rate": rate})
        print(f"{optimizer} {rate} {result.evals['accuracy'][-1]:.3f}")
