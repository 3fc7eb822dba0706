"""What LaTeX's commands print, by their names: signs, accents, and which of their arguments.

A command that stands in no table prints its arguments.
"""

from __future__ import annotations

from unicodedata import normalize

from pipelines.corpus.markup.parts import names

_GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ϵ", "varepsilon": "ε", "zeta": "ζ",
    "eta": "η", "theta": "θ", "vartheta": "ϑ", "iota": "ι", "kappa": "κ", "lambda": "λ", "mu": "μ",
    "nu": "ν", "xi": "ξ", "pi": "π", "rho": "ρ", "sigma": "σ", "tau": "τ", "upsilon": "υ", "phi": "ϕ",
    "varphi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω", "Gamma": "Γ", "Delta": "Δ", "Theta": "Θ",
    "Lambda": "Λ", "Xi": "Ξ", "Pi": "Π", "Sigma": "Σ", "Upsilon": "Υ", "Phi": "Φ", "Psi": "Ψ", "Omega": "Ω",
}  # fmt: skip
FORMULA_SIGNS = _GREEK | {
    "times": "×", "cdot": "·", "div": "÷", "pm": "±", "mp": "∓", "leq": "≤", "le": "≤", "geq": "≥",
    "ge": "≥", "neq": "≠", "ne": "≠", "approx": "≈", "sim": "~", "simeq": "≃", "equiv": "≡", "ll": "≪",
    "gg": "≫", "to": "→", "rightarrow": "→", "longrightarrow": "→", "leftarrow": "←", "mapsto": "↦",
    "leftrightarrow": "↔", "Rightarrow": "⇒", "Leftarrow": "⇐", "implies": "⇒", "iff": "⇔",
    "Leftrightarrow": "⇔", "Longrightarrow": "⇒", "longleftarrow": "←", "uparrow": "↑", "downarrow": "↓",
    "in": "∈", "notin": "∉", "subset": "⊂", "subseteq": "⊆", "supset": "⊃", "supseteq": "⊇", "cup": "∪",
    "cap": "∩", "setminus": "∖", "emptyset": "∅", "varnothing": "∅", "infty": "∞", "ldots": "…",
    "dots": "…", "cdots": "…", "circ": "∘", "bullet": "•", "star": "⋆", "ast": "*", "wedge": "∧",
    "land": "∧", "vee": "∨", "lor": "∨", "neg": "¬", "lnot": "¬", "forall": "∀", "exists": "∃",
    "partial": "∂", "nabla": "∇", "ell": "ℓ", "hbar": "ℏ", "aleph": "ℵ", "prime": "′", "oplus": "⊕",
    "otimes": "⊗", "propto": "∝", "cong": "≅", "perp": "⊥", "bot": "⊥", "top": "⊤", "checkmark": "✓",
    "quad": " ", "qquad": " ", "colon": ":", "lt": "<", "gt": ">", "dag": "†", "dagger": "†", "deg": "deg",
    "log": "log", "ln": "ln", "exp": "exp", "sin": "sin", "cos": "cos", "tan": "tan", "min": "min",
    "max": "max", "sup": "sup", "inf": "inf", "lim": "lim", "det": "det", "dim": "dim", "ker": "ker",
    "gcd": "gcd", "arg": "arg", "langle": "⟨", "rangle": "⟩",
}  # fmt: skip
# That print a letter; the space behind them is only there to end their names.
LETTERS = {
    "ss": "ß", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "o": "ø", "O": "Ø", "aa": "å", "AA": "Å",
    "l": "ł", "L": "Ł", "i": "ı", "j": "ȷ", "dh": "ð", "DH": "Ð", "th": "þ", "TH": "Þ", "dj": "đ",
    "DJ": "Đ", "ng": "ŋ", "NG": "Ŋ", "SS": "ẞ",
}  # fmt: skip
SIGNS = LETTERS | {
    "&": "&", "%": "%", "_": "_", "#": "#", "$": "$", "{": "{", "}": "}", " ": " ", "\n": " ", "\t": " ",
    ",": " ", ":": " ", ";": " ", "/": "", "-": "", "!": "", "@": "", "": "", "quad": " ", "qquad": " ",
    "enspace": " ", "enskip": " ", "thinspace": " ", "space": " ", "nobreakspace": " ", "ldots": "…",
    "dots": "…", "textellipsis": "…", "LaTeX": "LaTeX", "LaTeXe": "LaTeX2e", "TeX": "TeX",
    "BibTeX": "BibTeX", "XeLaTeX": "XeLaTeX", "LuaLaTeX": "LuaLaTeX", "pdfLaTeX": "pdfLaTeX", "S": "§",
    "P": "¶", "dag": "†", "ddag": "‡", "copyright": "©", "textcopyright": "©", "textregistered": "®",
    "texttrademark": "™", "pounds": "£", "textsterling": "£", "euro": "€", "texteuro": "€", "EUR": "€",
    "textdegree": "°", "degree": "°", "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^",
    "textunderscore": "_", "textbar": "|", "textless": "<", "textgreater": ">", "textendash": "–",
    "textemdash": "—", "textquotedblleft": "“", "textquotedblright": "”", "textquotedbl": '"',
    "textquoteleft": "‘", "textquoteright": "’", "textquotesingle": "'", "lq": "'", "rq": "'",
    "guillemotleft": "«", "guillemotright": "»", "og": "« ", "fg": " »", "glqq": "„", "grqq": "“",
    "glq": "‚", "grq": "‘", "flqq": "«", "frqq": "»", "flq": "‹", "frq": "›", "quotedblbase": "„",
    "textbullet": "•", "textperiodcentered": "·", "textpm": "±", "texttimes": "×", "textmu": "µ",
    "textrightarrow": "→", "textleftarrow": "←", "no": "n°", "No": "N°", "ier": "er", "iere": "re",
    "ieme": "e", "textonehalf": "½", "lbrace": "{", "rbrace": "}", "textbraceleft": "{",
    "textbraceright": "}", "checkmark": "✓", "Checkmark": "✓", "cmark": "✓", "xmark": "✗",
    "slash": "/", "vdots": "⋮", "textdollar": "$", "ie": "i.e.", "eg": "e.g.", "etc": "etc.",
    "etal": "et al.",
    "cf": "cf.", "wrt": "w.r.t.", "vs": "vs.",
}  # fmt: skip
DINGBATS = {"51": "✓", "52": "✔", "55": "✗", "56": "✘"}
SPACED = tuple(".…®™©§¶")  # signs behind which a space stays, as behind a word
ACCENTS = {
    "`": "\u0300", "'": "\u0301", "^": "\u0302", "~": "\u0303", "=": "\u0304", "u": "\u0306", ".": "\u0307",
    '"': "\u0308", "r": "\u030a", "H": "\u030b", "v": "\u030c", "d": "\u0323", "c": "\u0327", "k": "\u0328",
    "b": "\u0331",
}  # fmt: skip
ALONE = tuple("`'^~\"=.")  # accents that are printed over nothing
GERMAN = {
    **dict(zip("aouAOUs", "äöüÄÖÜß", strict=True)),
    "`": "„", "'": "“", "-": "", "=": "-", "|": "", "<": "«", ">": "»", '"': "",
}  # fmt: skip
HEADINGS = {
    "title": 1, "part": 1, "chapter": 1, "section": 2, "subsection": 3, "subsubsection": 4,
    "frametitle": 2, "chapitre": 1, "addchap": 1, "addsec": 2, "addpart": 1, "minisec": 4, "newchap": 1,
}  # fmt: skip
RUN_IN = names("paragraph subparagraph")
# Of text: what Markdown puts around it. As declarations ({\bf …}) too.
MARKS = {
    "emph": "*", "textit": "*", "textsl": "*", "textbf": "**", "strong": "**",
    "it": "*", "em": "*", "sl": "*", "itshape": "*", "slshape": "*", "bf": "**", "bfseries": "**",
}  # fmt: skip
DECLARED_STYLES = names("it em sl itshape slshape bf bfseries tt ttfamily")
BREAKS = names("par smallskip medskip bigskip newpage clearpage vspace vfill vskip bibitem")
CODE = names("texttt code lstinline path file command filename mintinline url nolinkurl tt ttfamily")
PLAIN_ADDRESS = names("url nolinkurl path")
FOOTNOTES = names("footnote footnotetext sidenote marginpar marginnote endnote tablefootnote")
OVERLAID = names("only uncover visible alert onslide invisible")  # <2-> may follow
CAPTIONS = names("caption subcaption captionof vcaption captionabove captionbelow")
_WITHOUT = {  # commands that print nothing, by how many arguments they take
    0: "maketitle tableofcontents listoffigures listoftables newpage clearpage cleardoublepage pagebreak"
    " linebreak newline noindent indent centering raggedright raggedleft smallskip medskip bigskip vfill"
    " hfill hfil vss hss par appendix frontmatter mainmatter backmatter printbibliography printindex"
    " printglossaries makeindex makeatletter makeatother tiny scriptsize footnotesize small normalsize large"
    " Large LARGE huge Huge rm sf sc up normalfont rmfamily sffamily scshape upshape mdseries boldmath"
    " unboldmath onecolumn twocolumn sloppy fussy protect relax hline toprule midrule bottomrule endhead"
    " endfirsthead endfoot endlastfoot nobreak allowbreak xspace footnotemark today pause null strut"
    " nonumber notag qed qedhere leavevmode unskip ignorespaces bgroup egroup begingroup endgroup flushleft"
    " nopagebreak goodbreak filbreak break dotfill hrulefill hrule"
    " doublespacing singlespacing onehalfspacing raggedbottom flushbottom subsubsectionmark balance"
    " eject titlerule nolinebreak samepage addlinespace endinput else fi or item global long expandafter"
    " vrule",
    1: "label index glossary vspace hspace input include includeonly bibliography"
    " bibliographystyle pagestyle thispagestyle pagenumbering usepackage RequirePackage documentclass"
    " includegraphics includesvg graphicspath hypersetup tikzset lstset geometry usetikzlibrary"
    " pgfplotsset thanks author date institute affiliation email nocite phantom hphantom vphantom color"
    " rowcolor cellcolor columncolor cline cmidrule arraybackslash todo missingfigure stepcounter"
    " refstepcounter enlargethispage linespread fontfamily selectfont captionsetup excludecomment"
    " includecomment theoremstyle phantomsection bibitem lstinputlisting verbatiminput addbibresource"
    " tikzinput printglossary usetheme usecolortheme setbeamertemplate hyphenation DeclareUnicodeCharacter"
    " ProvidesPackage ProvidesClass NeedsTeXFormat ccsdesc keywords acmConference markright"
    " linenumbers symlabel bstctlcite titlerunning authorrunning newcounter newlength"
    " newif newsavebox usebox pgfmathsetmacro setstretch sisetup crefname ispartof setmainfont"
    " setsansfont setmonofont setdefaultlanguage setotherlanguage selectlanguage onlyinsubfile"
    " subfile addvspace glsadd glsreset glsunset acused acresetall",
    2: "setlength addtolength setcounter addtocounter rule definecolor newcommand renewcommand"
    " providecommand DeclareMathOperator markboth addcontentsline newtheorem colorlet"
    " DeclareRobustCommand inputminted fontsize numberwithin let settowidth subimport import"
    " newglossaryentry setbeamercolor setbeamerfont AtBeginEnvironment addtotoc fancyhead",
    3: "newenvironment renewenvironment addtocontents DeclareFixedFont DeclareMathAlphabet titlespacing"
    " NewDocumentCommand RenewDocumentCommand DeclareDocumentCommand DeclarePairedDelimiter",
    4: "NewDocumentEnvironment titleformat",
}
NOTHING = {name: count for count, listed in _WITHOUT.items() for name in listed.split()}
# Commands of several arguments, of which one is printed: how many, and which.
PRINTED = {
    "textcolor": (2, 1), "colorbox": (2, 1), "fcolorbox": (3, 2), "href": (2, 1), "hyperlink": (2, 1),
    "hyperref": (1, 0), "scalebox": (2, 1), "resizebox": (3, 2), "rotatebox": (2, 1), "parbox": (2, 1),
    "multicolumn": (3, 2), "multirow": (3, 2), "foreignlanguage": (2, 1), "texorpdfstring": (2, 1),
    "makebox": (1, 0), "framebox": (1, 0), "subfloat": (1, 0), "hypertarget": (2, 1),
    "highlight": (2, 1), "adjustbox": (2, 1), "setlist": (1, -1), "textlangfr": (2, 1), "raisebox": (2, 1),
    "lettrine": (2, 0), "acrodef": (2, -1), "newacronym": (3, -1), "newabbreviation": (3, -1),
    "DeclareAcronym": (2, -1), "glslink": (2, 1), "glsdisp": (2, 1), "pgfkeys": (1, -1), "foreign": (1, 0),
    "uppercase": (1, 0), "only": (1, 0), "uncover": (1, 0), "visible": (1, 0), "alert": (1, 0),
    "onslide": (1, 0), "invisible": (1, 0), "MakeUppercase": (1, 0), "bibinfo": (2, 1),
    "bibfield": (2, 1),
}  # fmt: skip
_UNITS = {
    "metre": "m", "meter": "m", "second": "s", "gram": "g", "kilogram": "kg", "ampere": "A", "kelvin": "K",
    "mole": "mol", "candela": "cd", "hertz": "Hz", "newton": "N", "pascal": "Pa", "joule": "J", "watt": "W",
    "volt": "V", "ohm": "Ω", "farad": "F", "tesla": "T", "litre": "L", "liter": "L", "hour": "h",
    "minute": "min", "day": "d", "degree": "°", "celsius": "°C", "degreeCelsius": "°C", "percent": "%",
    "byte": "B", "bit": "bit", "electronvolt": "eV", "per": "/", "square": "²", "squared": "²",
    "cubed": "³", "kilo": "k", "mega": "M", "giga": "G", "tera": "T", "milli": "m", "micro": "µ",
    "nano": "n", "pico": "p", "centi": "c", "deci": "d", "km": "km", "cm": "cm", "mm": "mm", "ms": "ms",
    "kg": "kg", "nm": "nm", "um": "µm", "us": "µs", "ns": "ns", "GHz": "GHz", "MHz": "MHz", "kHz": "kHz",
    "ensuremath": "", "mathrm": "", "text": "", "textrm": "", "xspace": "", "mu": "µ",
}  # fmt: skip
QUANTITIES = {  # how many numbers, and whether a unit follows
    "SI": (1, True), "qty": (1, True), "num": (1, False), "ang": (1, False), "si": (0, True),
    "unit": (0, True), "SIrange": (2, True), "qtyrange": (2, True), "numrange": (2, False),
    "SIlist": (1, True), "qtylist": (1, True), "numlist": (1, False),
}  # fmt: skip
SKIPS = names("vskip hskip kern")
LENGTHS = SKIPS | names(  # that a number may follow
    "itemsep parskip parsep topsep partopsep parindent leftskip rightskip baselineskip"
    " lineskip tabcolsep arraycolsep columnsep leftmargin rightmargin labelsep labelwidth itemindent"
    " listparindent hsize vsize topmargin abovedisplayskip belowdisplayskip abovecaptionskip multicolsep"
    " belowcaptionskip hangindent hangafter tolerance hbadness vbadness looseness penalty clubpenalty"
    " widowpenalty emergencystretch textwidth textheight columnwidth linewidth"
)

LABELS = {  # what a label that begins so names
    "sec": "section", "subsec": "section", "ssec": "section", "section": "section", "cha": "chapter",
    "chap": "chapter", "ch": "chapter", "fig": "figure", "figure": "figure", "tab": "table", "tbl": "table",
    "table": "table", "thm": "theorem", "lem": "lemma", "prop": "proposition", "cor": "corollary",
    "def": "definition", "defn": "definition", "eq": "equation", "eqn": "equation", "app": "appendix",
    "alg": "algorithm", "ex": "exercise", "eg": "example", "rmk": "remark", "rem": "remark", "ax": "axiom",
}  # fmt: skip
FORMULAS = names(
    "equation align gather multline eqnarray flalign alignat displaymath math dmath aligned split mathpar"
    " mathparpagebreakable prooftree CD cases array matrix pmatrix bmatrix gathered"
    " subequations IEEEeqnarray empheq"
    " narrowmultline numcases"
)
PICTURES = names(
    "tikzpicture picture pspicture axis tikzcd forest circuitikz xy asy pgfpicture psmatrix diagram xymatrix"
    " scope comment filecontents CCSXML thebibliography theindex sagesilent luacode rawhtml htmlonly"
    " feynman chart overpic textblock"
)
ALGORITHMS = names("algorithm algorithmic algorithm2e algpseudocode pseudocode program")
TABLES = {
    "tabular": 1, "tabularx": 2, "tabulary": 2, "longtable": 1, "supertabular": 1, "xtabular": 1, "tabu": 1,
    "longtabu": 1, "NiceTabular": 1, "tblr": 1, "longtblr": 1, "mpxtabular": 1, "tabbing": 0,
}  # fmt: skip
SKIPPED = {  # arguments of environments that are no words
    "minipage": 1, "multicols": 1, "wrapfigure": 2, "wraptable": 2, "subfigure": 1, "subtable": 1,
    "adjustbox": 1, "spacing": 1, "column": 1, "adjustwidth": 2, "wrapfig": 2, "turn": 1, "rotate": 1,
    "otherlanguage": 1, "textblock": 1, "colorbox": 1, "addmargin": 1, "list": 2, "varwidth": 1,
}  # fmt: skip
_NAMES = {
    "Theorem": "theorem thm theo", "Lemma": "lemma lem lemme", "Proposition": "proposition prop",
    "Corollary": "corollary cor coro", "Definition": "definition defn defi", "Remark": "remark rem rmk",
    "Example": "example exmp eg", "Exercise": "exercise ex exer", "Proof": "proof", "Claim": "claim",
    "Conjecture": "conjecture conj", "Abstract": "abstract", "Note": "note", "Notation": "notation",
    "Question": "question", "Problem": "problem", "Solution": "solution", "Fact": "fact", "Axiom": "axiom",
    "Satz": "satz", "Beweis": "beweis bew", "Bemerkung": "bemerkung bem", "Beispiel": "beispiel bsp",
    "Aufgabe": "aufgabe", "Lösung": "loesung lsg", "Théorème": "theoreme", "Preuve": "preuve demonstration",
    "Remarque": "remarque", "Exemple": "exemple", "Exercice": "exercice", "Corollaire": "corollaire",
}  # fmt: skip
THEOREMS = {name: shown for shown, listed in _NAMES.items() for name in listed.split()}
# Whose meaning here no macro with arguments, and none of another file, may replace.
COMMANDS = RUN_IN | DECLARED_STYLES | BREAKS | CODE | FOOTNOTES | CAPTIONS | LENGTHS
COMMANDS |= HEADINGS.keys() | MARKS.keys() | NOTHING.keys() | PRINTED.keys() | QUANTITIES.keys()


def arguments_before_text(name: str) -> int:
    """Return how many arguments of a command print nothing before one that does, if any."""
    return NOTHING.get(name) or max(0, PRINTED.get(name, (0, 0))[1])


def accented(accent: str, letter: str) -> str:
    """Return a letter, or the first one of several, with an accent."""
    if not letter.strip():
        return accent + letter if accent in ALONE else letter
    if not letter[0].isalpha():
        return letter
    first = {"ı": "i", "ȷ": "j"}.get(letter[0], letter[0])
    return normalize("NFC", first + ACCENTS[accent]) + letter[1:]


def unit(name: str) -> str:
    """Return the sign of a unit, or of what multiplies it."""
    return _UNITS.get(name, name)
