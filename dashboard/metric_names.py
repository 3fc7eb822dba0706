"""Name what a training run stores at every step in words, with its unit."""

from __future__ import annotations

NATS = "nats a token"
WORDS = {
    "answer_probability": "probability of the answers about the documents",
    "answer_probability_error": "standard error of the probability of the answers",
    "batch_seconds": "time to prepare batches, seconds",
    "clean_forward_kl": f"forward KL from the clean model, {NATS}",
    "entropy": f"entropy of the student, {NATS}",
    "eta_seconds": "remaining time, seconds",
    "grad_norm": "gradient norm",
    "gradient_bias": "bias of the gradient",
    "gradient_concentration": "concentration of the gradient",
    "gradient_density": "density of the gradient",
    "k1_reverse_kl": f"reverse KL, k1 estimate, {NATS}",
    "k3_reverse_kl": f"reverse KL, k3 estimate, {NATS}",
    "logprob": f"log-probability of the tokens, {NATS}",
    "loss": "loss",
    "lr": "learning rate",
    "new_cloze_probability": "probability of new facts in gaps",
    "rehearsal_loss": "loss on rehearsed documents",
    "repeated_share": "share of answers that repeat themselves",
    "response_tokens": "length of an answer, tokens",
    "reverse_kl": f"reverse KL from the teacher, {NATS}",
    "sampler_gap": f"gap between sampler and trainer, {NATS}",
    "sampler_gap_max": f"largest gap between sampler and trainer, {NATS}",
    "signal_bias": "bias of the signal",
    "signal_concentration": "concentration of the signal",
    "signal_density": "density of the signal",
    "step_seconds": "time of a step, seconds",
    "student_stop_mass": "probability of the student to stop here",
    "teacher_logprob": f"log-probability by the teacher, {NATS}",
    "teacher_stop_mass": "probability of the teacher to stop here",
    "tokens": "tokens a step",
    "tokens_per_second": "tokens a second",
    "topk_reverse_kl": f"reverse KL on the teacher's likeliest tokens, {NATS}",
    "truncated_share": "share of answers cut at the limit",
}


def words(name: str) -> str:
    """Return a metric in words; one that is not known keeps its own name."""
    return WORDS.get(name, name.replace("_", " "))
