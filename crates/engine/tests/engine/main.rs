//! The engine over scripted models: no model file is needed.
//!
//! Faults that users met elsewhere, and the tests that hold the right behaviour here:
//!
//! | fault | test |
//! |---|---|
//! | text differs with speculation on, with the draft's length, with penalties, by seed | `same_tokens::any_drafter_gives_the_tokens_of_plain_decoding` |
//! | nonsense when the draft model is bad; a draft equal to the target is accepted 100 % | the same; `same_tokens::a_draft_equal_to_the_target_is_accepted_whole` |
//! | the bonus token lost on full acceptance | `counters::a_run_counted_by_hand` |
//! | accepted tokens verified again, rounds that commit nothing | `same_tokens::nothing_is_evaluated_twice` |
//! | drafts beyond the context or beyond max_tokens crash | `ends::drafts_shrink_near_the_context`, `ends::never_more_tokens_than_asked_for` |
//! | a stop token inside an accepted run ignored | `ends::a_stop_token_inside_an_accepted_run_ends_it` |
//! | a stop string across tokens, or inside an accepted run, missed | `ends::stop_strings_are_found_at_every_split` |
//! | tokens after the end stay in counters or cache | `ends::a_stop_token_inside_an_accepted_run_ends_it`, `ends::a_cut_leaves_nothing_behind` |
//! | cancelled requests keep blocks or go on computing | `memory::cancelled_sequences_return_their_pages` |
//! | preempted sequences resume with stale drafts | `memory::sequences_that_wait_for_pages_say_the_same` |
//! | out of pages | `memory::one_sequence_that_does_not_fit_is_an_error` |
//! | N together differ from N alone; drafts attributed to the wrong request | `same_tokens::together_is_as_alone` |
//! | n-gram state of one request used in the next | `same_tokens::a_second_identical_request_is_drafted_alike` |
//! | a prefix computed again, or pages lost to it | `sharing::*` |
//! | a short request behind a long prompt | `sharing::a_short_prompt_does_not_wait_for_a_long_one` |
//! | chunked prompts | `same_tokens::prompt_chunks_change_nothing` |
//! | chunks counted as tokens; characters broken | `ends::characters_are_never_broken` |
//! | division by zero before the first draft, acceptance above 100 %, counters not monotone | `counters::before_the_first_draft`, `counters::rates_stay_within_their_bounds` |
//! | "slower" with no way to see why | `counters::a_run_counted_by_hand` |
//! | an option accepted and ignored | `faults::requests_that_cannot_be_served_are_refused`, `counters::settings_of_the_draft_length` |
//! | a drafter that fails | `faults::a_failing_drafter_is_turned_off_and_says_why` |
//! | a model that fails, logits that are not numbers | `faults::*` |
//! | a draft that the grammar forbids, a grammar not applied to later rows of a round | `grammar::drafts_change_nothing_under_a_grammar` |
//! | hidden states of the wrong row, or missing | `faults::a_drafter_sees_the_rows_it_asks_for`, `speculator::*` |

mod common;
mod counters;
mod ends;
mod faults;
mod grammar;
mod memory;
mod same_tokens;
mod sharing;
mod speculator;
