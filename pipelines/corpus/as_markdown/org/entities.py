"""The characters that Org calls by names, as in \\alpha."""

from __future__ import annotations

_GREEK = (
    "Alpha Α alpha α Beta Β beta β Gamma Γ gamma γ Delta Δ delta δ Epsilon Ε epsilon ε varepsilon ε"
    " Zeta Ζ zeta ζ Eta Η eta η Theta Θ theta θ vartheta ϑ Iota Ι iota ι Kappa Κ kappa κ Lambda Λ"
    " lambda λ Mu Μ mu μ Nu Ν nu ν Xi Ξ xi ξ Omicron Ο omicron ο Pi Π pi π Rho Ρ rho ρ Sigma Σ"
    " sigma σ sigmaf ς varsigma ς Tau Τ tau τ Upsilon Υ upsilon υ Phi Φ phi φ varphi ϕ Chi Χ chi χ"
    " Psi Ψ psi ψ Omega Ω omega ω"
)
_LETTERS = (
    "Agrave À agrave à Aacute Á aacute á Acirc Â acirc â Atilde Ã atilde ã Auml Ä auml ä Aring Å"
    " AA Å aring å AElig Æ aelig æ Ccedil Ç ccedil ç Egrave È egrave è Eacute É eacute é Ecirc Ê"
    " ecirc ê Euml Ë euml ë Igrave Ì igrave ì Iacute Í iacute í Icirc Î icirc î Iuml Ï iuml ï"
    " Ntilde Ñ ntilde ñ Ograve Ò ograve ò Oacute Ó oacute ó Ocirc Ô ocirc ô Otilde Õ otilde õ Ouml Ö"
    " ouml ö Oslash Ø oslash ø OElig Œ oelig œ Scaron Š scaron š szlig ß Ugrave Ù ugrave ù Uacute Ú"
    " uacute ú Ucirc Û ucirc û Uuml Ü uuml ü Yacute Ý yacute ý yuml ÿ ETH Ð eth ð THORN Þ thorn þ"
)
_SIGNS = (
    "ldots … dots … hellip … ndash – mdash — iexcl ¡ iquest ¿ laquo « raquo » ldquo “ rdquo ”"
    ' lsquo ‘ rsquo ’ bdquo „ sbquo ‚ quot " lsaquo ‹ rsaquo › sect § S § para ¶ dag † dagger †'
    " Dagger ‡ ddag ‡ bull • bullet • middot · cdot · cdots ⋯ star ⋆ copy © reg ® trade ™ TM ™ deg °"
    " checkmark ✓ check ✓ male ♂ female ♀ smiley ☺ sad ☹ clubs ♣ spades ♠ hearts ♥ diamonds ♦ ordf ª"
    " ordm º sup1 ¹ sup2 ² sup3 ³ frac12 ½ frac14 ¼ frac34 ¾ cent ¢ pound £ yen ¥ euro € EUR €"
    " curren ¤ vert | vbar | slash / ast * under _ equal = tilde ~ plus + dollar $ hash # percnt %"
    " amp & lt < gt > lbrack [ rbrack ] lbrace { rbrace } backslash \\ bsol \\ circ ˆ asciicirc ^"
    " exclamation ! colon : bsemi ;"
)
_MATHEMATICS = (
    "larr ← leftarrow ← rarr → rightarrow → to → uarr ↑ uparrow ↑ darr ↓ downarrow ↓ harr ↔"
    " leftrightarrow ↔ lArr ⇐ Leftarrow ⇐ rArr ⇒ Rightarrow ⇒ uArr ⇑ Uparrow ⇑ dArr ⇓ Downarrow ⇓"
    " hArr ⇔ Leftrightarrow ⇔ times × div ÷ pm ± plusmn ± mp ∓ minus − le ≤ leq ≤ ge ≥ geq ≥ ne ≠"
    " neq ≠ approx ≈ asymp ≈ sim ∼ cong ≅ simeq ≃ equiv ≡ ll ≪ gg ≫ prop ∝ proptop ∝ infin ∞ infty ∞"
    " sum ∑ prod ∏ radic √ partial ∂ part ∂ int ∫ nabla ∇ isin ∈ in ∈ notin ∉ ni ∋ sub ⊂ subset ⊂"
    " sup ⊃ supset ⊃ sube ⊆ supe ⊇ cap ∩ cup ∪ setminus ∖ empty ∅ emptyset ∅ forall ∀ exist ∃"
    " exists ∃ and ∧ wedge ∧ or ∨ vee ∨ not ¬ neg ¬ oplus ⊕ otimes ⊗ perp ⊥ ang ∠ angle ∠ there4 ∴"
    " therefore ∴ because ∵ alefsym ℵ hbar ℏ ell ℓ real ℜ Re ℜ image ℑ Im ℑ prime ′ Prime ″ langle ⟨"
    " lang ⟨ rangle ⟩ rang ⟩ lceil ⌈ rceil ⌉ lfloor ⌊ rfloor ⌋ permil ‰ micro µ mho ℧"
)


def _pairs(table: str) -> dict[str, str]:
    words = table.split(" ")
    return dict(zip(words[::2], words[1::2], strict=True))


ENTITIES = _pairs(_GREEK) | _pairs(_LETTERS) | _pairs(_SIGNS) | _pairs(_MATHEMATICS)
ENTITIES |= {
    "nbsp": "\u00a0",
    "ensp": "\u2002",
    "emsp": "\u2003",
    "thinsp": "\u2009",
    "shy": "",
    "zwnj": "\u200c",
}
