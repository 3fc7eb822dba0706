"""The characters that Org calls by names, as in \\alpha."""

from __future__ import annotations

from html.entities import html5

_AS_HTML = (
    "Alpha alpha Beta beta Gamma gamma Delta delta Epsilon epsilon Zeta zeta Eta eta Theta theta vartheta"
    " Iota iota Kappa kappa Lambda lambda Mu mu Nu nu Xi xi Omicron omicron Pi pi Rho rho Sigma sigma sigmaf"
    " varsigma Tau tau Upsilon upsilon Phi phi varphi Chi chi Psi psi Omega omega Agrave agrave Aacute aacute"
    " Acirc acirc Atilde atilde Auml auml Aring aring AElig aelig Ccedil ccedil Egrave egrave Eacute eacute"
    " Ecirc ecirc Euml euml Igrave igrave Iacute iacute Icirc icirc Iuml iuml Ntilde ntilde Ograve ograve"
    " Oacute oacute Ocirc ocirc Otilde otilde Ouml ouml Oslash oslash OElig oelig Scaron scaron szlig Ugrave"
    " ugrave Uacute uacute Ucirc ucirc Uuml uuml Yacute yacute yuml ETH eth THORN thorn hellip ndash mdash"
    " iexcl iquest laquo raquo ldquo rdquo lsquo rsquo bdquo sbquo quot lsaquo rsaquo sect para dagger Dagger"
    " bull bullet middot copy reg trade deg checkmark check male female clubs spades hearts ordf ordm sup1"
    " sup2 sup3 frac12 frac14 frac34 cent pound yen euro curren vert ast plus dollar percnt amp lt gt lbrack"
    " rbrack lbrace rbrace bsol circ colon larr leftarrow rarr rightarrow uarr uparrow darr downarrow harr"
    " leftrightarrow lArr Leftarrow rArr Rightarrow uArr Uparrow dArr Downarrow hArr Leftrightarrow times div"
    " pm plusmn mp minus le leq ge geq ne approx asymp sim cong simeq equiv ll gg prop infin sum prod radic"
    " part int nabla isin in notin ni sub subset sup supset sube supe cap cup setminus empty emptyset forall"
    " exist and wedge or vee not oplus otimes perp ang angle there4 therefore because alefsym hbar ell real"
    " Re image Im prime Prime langle lang rangle rang lceil rceil lfloor rfloor permil micro mho nbsp ensp"
    " emsp thinsp zwnj"
)
_OTHERWISE = (
    "varepsilon ε AA Å ldots … dots … S § dag † ddag ‡ cdot · cdots ⋯ star ⋆ TM ™ smiley ☺ sad ☹ diamonds ♦"
    " EUR € vbar | slash / under _ equal = tilde ~ hash # backslash \\ asciicirc ^ exclamation ! bsemi ; to →"
    " neq ≠ proptop ∝ infty ∞ partial ∂ exists ∃ neg ¬"
)
_OTHERS = _OTHERWISE.split(" ")
ENTITIES = {name: html5[f"{name};"] for name in _AS_HTML.split()} | {"shy": ""}
ENTITIES |= zip(_OTHERS[::2], _OTHERS[1::2], strict=True)
