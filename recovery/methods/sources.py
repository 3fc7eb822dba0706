"""What each row of the table keeps of its source, what it leaves out, and what it adds."""

from __future__ import annotations

KEEPS = {
    "sft": "keeps cross-entropy on the given answers; leaves out nothing",
    "rft": "keeps imitation of sampled answers that pass the check; samples anew at every step, not once",
    "seqkd": "keeps training on the teacher's answers; samples them instead of beam search",
    "asft": "keeps the DFT-weighted label and 0.1 KL(clean||student) of the authors' code",
    "dft": "keeps the label weighted by its detached probability; leaves out nothing",
    "rl": "keeps group-mean advantages and the clipped ratio of GRPO; leaves out the division by the group's "
    "standard deviation, the mean per answer and the KL penalty",
    "opd": "keeps student samples, reverse KL and no discount; takes the KL over the whole vocabulary, not "
    "at the sampled token",
    "opd-near": "keeps opd; adds a teacher q ~ clean^a student^(1-a), with the largest a that keeps "
    "KL(q||student) within the budget, found for each token at each step; iSDFT, a near relation, limits the "
    "information from a teacher that sees demonstrations, and anchors to the base model",
    "opd-sampled": "keeps log q - log p of the sampled token as its advantage; adds a second pass with PPO's "
    "clip",
    "opd-topk": "keeps student samples and reverse KL; adds one bucket for what is outside the top k",
    "gkd": "keeps the mixture of data and student samples and the JSD; leaves out the reward term, and fixes "
    "the share of each step instead of drawing it",
    "minillm": "keeps teacher-mixed sampling, prefix importance weights and the one-step reverse KL; leaves "
    "out the return of later tokens, its length normalisation and the pretraining loss",
    "opd-continue": "keeps cross-entropy on short continuations that the teacher writes from the student's "
    "prefixes; cuts each answer at a random point",
    "opd-reward": "keeps the mixture of teacher signal and reward; takes the teacher's part as an exact KL",
    "opd-multi": "keeps one specialised teacher for each domain, on student samples; takes the KL over the "
    "whole vocabulary, where the source takes the sampled token's log-ratio as an advantage; mixes in no "
    "reward",
    "sdft": "keeps student samples, demonstrations in view of a moving-average teacher, and the forward KL "
    "of the authors' later note",
    "sdft-reverse": "keeps the same with the reverse KL that the paper states",
    "opcd": "keeps student samples and reverse KL to the model that sees the system prompt; takes the whole "
    "vocabulary, not a top k; leaves out knowledge extracted from solved tasks, and larger teachers",
    "deliberate": "keeps answers written with the rules in view and learned without them; leaves out the "
    "judge that filters them and the reinforcement learning after",
    "opsd": "keeps student samples, JSD 0.5 at temperature 1.1, the frozen initial teacher and the clip per "
    "entry; shortens the instruction around the answer",
    "pid": "keeps the reverse KL between the student, on its samples, and itself with privileged hints (the "
    "source's on-policy variant); leaves out the reward that this KL regularises there, and joint training "
    "of the teacher (pi-Distill); freezes the teacher and adds a clip per entry",
    "passage": "keeps answers that the frozen model samples with the document in its prompt, and the forward "
    "KL to it without; takes questions from the documents' own sentences, where the source has a model write "
    "them, and samples anew at every step, not once",
}
