//! Whether two models share a vocabulary.

use super::Tokenizer;
use super::vocab::Kind;
use foretoken_spec::Token;

pub(super) fn check(target: &Tokenizer, draft: &Tokenizer) -> Result<(), String> {
    let (kind, draft_kind) = (target.kind(), draft.kind());
    if kind != draft_kind {
        return Err(format!(
            "the target's tokenizer is {kind}, the draft's {draft_kind}"
        ));
    }
    let shared = target.vocab_size().min(draft.vocab_size()) as Token;
    for token in 0..shared {
        let same = target.piece(token) == draft.piece(token) && target.bytes(token) == draft.bytes(token);
        let free = |tokenizer: &Tokenizer| {
            !is_text(tokenizer.vocab.kind(token))
                && tokenizer.end_of_generation().binary_search(&token).is_err()
                && tokenizer.bos() != Some(token)
        };
        if same || free(target) && free(draft) {
            continue;
        }
        return Err(differs(token, target.piece(token), draft.piece(token)));
    }
    let (longer, target_is_longer) = if target.vocab_size() > draft.vocab_size() {
        (target, true)
    } else {
        (draft, false)
    };
    for token in shared..longer.vocab_size() as Token {
        let piece = longer.piece(token);
        if is_text(longer.vocab.kind(token)) && !is_padding(piece) {
            let (target, draft) = if target_is_longer {
                (piece, "")
            } else {
                ("", piece)
            };
            return Err(differs(token, target, draft));
        }
    }
    Ok(())
}

fn differs(token: Token, target: &str, draft: &str) -> String {
    let show = |piece: &str| {
        if piece.is_empty() {
            "nothing".to_owned()
        } else {
            format!("{piece:?}")
        }
    };
    format!(
        "the draft has another vocabulary: token {token} is {} in the target and {} in the draft",
        show(target),
        show(draft)
    )
}

/// Whether the token can stand in ordinary text.
fn is_text(kind: Kind) -> bool {
    matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Byte)
}

/// `[PAD151665]`, `<pad>`, `<|extra_7|>` and the like, which some files list as ordinary tokens.
pub(super) fn is_padding(piece: &str) -> bool {
    let name: String = piece
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .collect::<String>()
        .to_lowercase();
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let marked = piece.starts_with(['[', '<']) && piece.ends_with([']', '>']);
    piece.is_empty() || marked && matches!(name, "pad" | "unused" | "extra" | "reserved" | "empty" | "dummy")
}
