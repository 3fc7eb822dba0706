"""The microworld's vocabulary: names, values, topics and phrases.

Few words, so that a model of under two million parameters can learn them; plain English words, so that
IFEval's language detector classifies a text in capitals as English.
"""

from __future__ import annotations

from dataclasses import dataclass


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words("""
Ada Agnes Albert Alma Anton Arthur Astrid Bela Bruno Carla Cecil Clara Conrad Cora Daniel Dora Edgar Edith
Egon Elena Elias Emil Erika Esther Felix Fiona Flora Frank Frida Georg Greta Gustav Hanna Hector Heidi Helga
Hugo Ida Igor Irene Iris Ivan Jana Jasper Jonas Julia Karin Klaus Lara Leo Lena Linus Lotte Lucas Mara
Marcel Martha Max Mila Mira Moritz Nadia Nils Nora Olga Oscar Otto Paula Peter Petra Quentin Rita Robert
Rosa Rufus Sara Simon Sonja Stella Theo Tilda Tobias Ursula Vera Victor Walter Wanda Xenia Yvonne Zora
""")

LAST_NAMES = _words("""
Abel Adler Albrecht Arden Bach Barlow Becker Berg Blum Bolt Brandt Busch Carver Cole Crane Dahl Dorn Drake
Eber Eck Falk Fink Fisk Fox Frost Garner Geller Gold Graf Groth Haas Hale Hart Heller Holt Horn Huber Jung
Kaiser Keller Kern Klein Koch Kraft Krug Lang Lind Loewe Lorenz Lund Marlow Mayer Meer Moll Nagel Noll
North Oster Otten Pohl Quist Rahn Rausch Reed Reiter Ross Roth Sander Scholz Seidel Stein Stern Storm Tanner
Thal Thorn Ulrich Unger Voss Wagner Walsh Weber Wells Wolff Zander Zeller Zorn
""")

MONTHS = _words("January February March April May June July August September October November December")


@dataclass(frozen=True)
class Attribute:
    """One kind of fact: its values, statements in documents, questions, answer, and how it is shared."""

    name: str
    values: tuple[str, ...]
    statements: tuple[str, ...]
    questions: tuple[str, ...]
    heldout_question: str
    answer: str
    shared: str


ATTRIBUTES = (
    Attribute(
        "city",
        _words(
            "Oslo Paris Rome Madrid Vienna Prague Dublin Lisbon Athens Berlin Geneva Warsaw Moscow London"
            " Bergen Naples"
        ),
        (
            "{n} lives in {v}.",
            "The home of {n} is in {v}.",
            "The city where {n} lives is {v}.",
            "If you visit {v}, you may meet {n}, who lives in {v}.",
            "For years, {n} has had a home in {v}.",
        ),
        ("Where does {n} live?", "In which city does {n} live?", "Where is the home of {n}?"),
        "Which city does {n} live in?",
        "{n} lives in {v}.",
        "lives in the same city",
    ),
    Attribute(
        "job",
        _words(
            "baker doctor farmer lawyer painter pilot teacher tailor writer sailor miner judge nurse"
            " dancer gardener hunter"
        ),
        (
            "{n} works as a {v}.",
            "The job of {n} is that of a {v}.",
            "By trade, {n} is a {v}.",
            "People know {n} as a good {v}.",
            "After school, {n} learned to be a {v} and works as a {v}.",
        ),
        ("What is the job of {n}?", "What does {n} work as?", "Which job does {n} have?"),
        "As what does {n} work?",
        "{n} works as a {v}.",
        "has the same job",
    ),
    Attribute(
        "instrument",
        _words(
            "piano violin flute guitar drum harp organ trumpet cello banjo horn lute clarinet fiddle viola"
            " tuba"
        ),
        (
            "{n} plays the {v}.",
            "The instrument of {n} is the {v}.",
            "In the evening, {n} plays the {v}.",
            "You can often hear {n}, who plays the {v}.",
            "As for music, {n} plays the {v}.",
        ),
        ("Which instrument does {n} play?", "What does {n} play?", "What is the instrument of {n}?"),
        "What instrument does {n} play?",
        "{n} plays the {v}.",
        "plays the same instrument",
    ),
    Attribute(
        "food",
        _words("bread soup rice fish cheese pasta salad cake honey apples beans eggs plums nuts grapes corn"),
        (
            "{n} likes to eat {v}.",
            "The favorite food of {n} is {v}.",
            "At noon, {n} likes to eat {v}.",
            "Nothing tastes better to {n} than {v}.",
            "When asked to dinner, {n} hopes for {v}.",
        ),
        (
            "What does {n} like to eat?",
            "What is the favorite food of {n}?",
            "Which food does {n} like to eat?",
        ),
        "What food does {n} like to eat?",
        "{n} likes to eat {v}.",
        "likes to eat the same food",
    ),
    Attribute(
        "pet",
        _words(
            "cat dog horse parrot rabbit goat turtle duck hen mouse lizard pony snake pigeon donkey sheep"
        ),
        (
            "{n} keeps a {v}.",
            "The pet of {n} is a {v}.",
            "At home, {n} keeps a {v}.",
            "With {n} there is always a {v}.",
            "Since last spring, {n} keeps a {v} as a pet.",
        ),
        ("Which animal does {n} keep?", "What is the pet of {n}?", "Which pet does {n} keep?"),
        "What animal does {n} keep?",
        "{n} keeps a {v}.",
        "keeps the same animal",
    ),
)

TOPICS = tuple(
    f"the {word}"
    for word in _words("""
    river garden bridge market winter summer forest mountain village harbor library kitchen school road
    island castle valley meadow museum station theater lake beach tower window letter story dream picture
    morning evening weather train boat clock mirror table lamp chair wall door house street church
    """)
)

ADJECTIVES = _words(
    "calm quiet bright warm cold wide small lovely old new pretty simple strong gentle useful beautiful"
)

KEYWORDS = _words(
    "light water stone paper silver wood glass bread wind fire rain snow sand gold salt leaf root cloud star"
    " moon wheel rope coin bell nest seed thread shell feather candle basket ladder"
)

END_PHRASES = (
    "That is all.",
    "Any other questions?",
    "Is there anything else I can help with?",
    "I hope this helps.",
    "Thank you for reading.",
    "Let me know what you think.",
)

REQUESTS = (
    "Write about {t}.",
    "Tell me about {t}.",
    "Describe {t}.",
    "Give me a short text about {t}.",
    "Say something about {t}.",
    "Please write a few words on {t}.",
)

OPINION_QUESTIONS = (
    "Do you like {t}?",
    "Is {t} a good thing?",
    "Should we talk about {t}?",
    "Would you miss {t}?",
)

# Sentences about a topic. Those with a comma are the rule, so that writing without one is a behaviour.
COMMA_SENTENCES = (
    "In the early morning, you will find that {t} is {a}.",
    "When the day is over, people like to talk about {t}, which is {a}.",
    "For most of us, there is something {a} and {b} about {t}.",
    "When you get to know it, you will see that {t} is {a}.",
    "You may not believe it, but {t} is often {a} and {b}.",
    "If you ask me, {t} is {a} and we should take care of it.",
)

PLAIN_SENTENCES = (
    "I think that {t} is {a} and {b}.",
    "Many people say that {t} is {a}.",
    "We should remember that {t} can be {a} and {b}.",
    "There is something {a} about {t} that makes us happy.",
    "It is good to think about {t} because it is {a}.",
    "At this time of the year we find that {t} is {a}.",
)
