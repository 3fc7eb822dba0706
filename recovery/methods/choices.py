"""What states, signals, teachers, contexts and other dials with names may be. Does not import torch."""

from __future__ import annotations

EXACT = ("reverse_kl", "forward_kl", "jsd")
TEACHER_SIGNALS = (*EXACT, "topk_reverse_kl", "sampled_reverse_kl")
LABELS = ("label", "label_dft")
SIGNALS = (*LABELS, *TEACHER_SIGNALS, "reward")
STUDENT_ALONE = ("student", "student-kept")  # tokens that only the student samples
SAMPLED_STATES = (*STUDENT_ALONE, "mix")  # tokens sampled from the student alone, at least some
STUDENT_BEGINS = (*SAMPLED_STATES, "student-continued")  # tokens of which the student samples the first
TEACHER_WRITES = ("student-continued", "teacher", "teacher-mix")  # tokens sampled with a teacher
STUDENT_STATES = (*SAMPLED_STATES, "teacher-mix")  # tokens with the sampler's log-probabilities
TEACHER_STATES = ("student-continued", "teacher")  # tokens that the teacher samples
READ_STATES = ("data", "mix")  # answers read from pairs, at least some
STATES = ("data", *SAMPLED_STATES, *TEACHER_WRITES)
FROZEN = ("base", "previous")  # checkpoints that are not the student
ITSELF = ("self", "self-ema")  # copies of the student
TEACHERS = ("none", *FROZEN, *ITSELF, "routed")
CONTEXTS = ("none", "demonstrations", "rules", "system", "answer", "hints", "passage")
ANCHORS = ("reverse", "forward")
BUDGETS_OF = ("token", "step")
REWARD_BASELINES = ("group", "leave-one-out", "group-std", "none")
