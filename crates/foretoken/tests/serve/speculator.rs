//! A speculator among a server's drafters.

use foretoken_model::testing::TinyModel;
use serde_json::json;

use crate::speculators;
use crate::support::Server;

#[test]
fn requests_choose_it_and_get_the_same_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let (model, speculator) = (dir.path().join("tiny.gguf"), dir.path().join("speculator.gguf"));
    TinyModel::llama().write(&model).unwrap();
    speculators::write(&speculator, &model, true, |info| {
        info.tokenizer_fingerprint = Some(1)
    });
    let speculator = speculator.to_str().unwrap();
    let server = Server::start(&["-d", speculator]);
    assert!(
        server.log().contains("made for another tokenizer"),
        "{}",
        server.log()
    );
    let models = server.get("/v1/models").json();
    let drafters = ["suffix", "recycling", "prediction", "mlp"];
    assert_eq!(models["data"][0]["drafters"], json!(drafters));
    let ask = |speculation| {
        server.chat(server.endless(json!({
            "seed": 3, "temperature": 0.9, "max_tokens": 24, "return_token_ids": true, "speculation": speculation,
        })))
    };
    let plain = ask(json!(false));
    for speculation in [
        json!(true),
        json!({"drafter": "mlp"}),
        json!({"drafter": "mlp", "max": 2}),
    ] {
        let answer = ask(speculation);
        assert_eq!(
            answer["choices"][0]["token_ids"],
            plain["choices"][0]["token_ids"]
        );
        let note = answer["speculation"]["note"].as_str().unwrap();
        assert!(note.contains("another tokenizer"), "{note}");
    }
    let alone = ask(json!({"drafter": "mlp"}));
    assert_eq!(alone["speculation"]["drafter"], "mlp");

    // Exactly so many tokens in each round: nobody else drafts.
    let fixed = Server::start(&["-d", speculator, "--draft-fixed", "2"]);
    assert_eq!(
        fixed.get("/v1/models").json()["data"][0]["drafters"],
        json!(["mlp"])
    );
    let answer = fixed.chat(
        fixed.endless(json!({"seed": 3, "temperature": 0.9, "max_tokens": 24, "return_token_ids": true})),
    );
    assert_eq!(
        answer["choices"][0]["token_ids"],
        plain["choices"][0]["token_ids"]
    );
    let sources = answer["speculation"]["sources"].as_object().unwrap();
    assert!(sources.len() == 1 && sources["mlp"]["drafted"].as_u64() > Some(0));
}
