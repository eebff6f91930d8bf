"""One-line breakages of fahmc, each with the tests that must notice it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A file of the package with one fragment, which occurs once in it, replaced by another."""

    area: str
    file: str
    before: str
    after: str
    tests: str
    """Where in ``tests``, in the words of pytest; several are separated by blanks."""


IDENTITIES, GRADIENT, CERTIFICATE = "dynamics/test_identities.py", "density/test_gradient.py", "test_certificate.py"
ALGEBRA, DAMAGE, ENCODING = "adaptive/test_algebra.py", "runs/test_damage.py", "data/test_encoding.py"
WIRE, GATE, RULES = (f"engines/test_flare_{name}.py" for name in ("wire", "gate", "rules"))
DISCLOSURE, COUNTS, SURVEY = (f"engines/test_flare_{name}.py" for name in ("disclosure", "counts", "masked_survey"))
MOMENTUM = f"{IDENTITIES}::test_averaged_momentum_is_standard_normal_for_every_correlation"
REVERSIBLE = f"{IDENTITIES}::test_leapfrog_is_reversible_and_of_second_order"
WHOLE = f"{IDENTITIES}::test_leapfrog_units_with_whole_trajectories_are_trajectory_units"
HALVES = f"{IDENTITIES}::test_splitting_a_client_in_halves_with_the_same_rows_changes_nothing"
METROPOLIS = "dynamics/test_metropolis.py::test_decisions_follow_the_energy_and_keep_the_target"
SPLIT = "dynamics/test_split_hmc.py::test_with_a_wrong_metric_every_trajectory_and_decision_is_that_of_the_equations"
AGREEMENT, MASKS = "engines/test_flare_agreement.py", "engines/test_flare_masks.py"
TRICKED, CHANGED = f"{AGREEMENT}::test_who_is_not_who_he_should_be_is_named", f"{MASKS}::test_a_flipped_byte_is_noticed"
AGAIN = f"{MASKS}::test_the_same_message_has_the_same_bytes_and_any_other_has_masks_of_its_own"
EXACT, NEW_JOB = (
    f"{MASKS}::test_the_sum_has_the_bits_of_fixed_point_without_masks_in_whatever_order",
    f"{MASKS}::test_a_round_is_that_of_plain_replies_and_a_new_job_has_its_bits",
)
PAIRS = f"{AGREEMENT}::test_two_sites_have_one_key_and_it_is_another_for_every_pair_context_and_job"
HELLOS = f"{AGREEMENT}::test_a_key_of_two_depends_on_what_all_others_said"
STREAMS, RECORD = "test_keys.py", "engines/test_record.py"

MUTANTS = [
    # dynamics
    Mutant("dynamics", "dynamics/momentum.py", "(1 - correlation) / client.weight", "1 - correlation", MOMENTUM),
    Mutant("dynamics", "dynamics/momentum.py", "correlation**0.5 *", "correlation *", MOMENTUM),
    Mutant("dynamics", "dynamics/leapfrog.py", "momentum - step_size / 2 * mass.force(gradient))",
           "momentum - step_size * mass.force(gradient))", REVERSIBLE),
    Mutant("dynamics", "dynamics/leapfrog.py", "mass.force(gradient + end_gradient)", "mass.force(2 * gradient)",
           REVERSIBLE),
    Mutant("dynamics", "dynamics/leapfrog.py", "HALF, position), 1.0)", "HALF, position), 0.5)", WHOLE),
    Mutant("dynamics", "dynamics/mass.py", "self.factor.T @ gradient", "self.factor @ gradient", REVERSIBLE),
    Mutant("dynamics", "dynamics/fa_hmc.py", "lax.cond(k == 0, lambda: momentum_of",
           "lax.cond(k >= 0, lambda: momentum_of", WHOLE),
    Mutant("dynamics", "dynamics/fa_hmc.py", "dtype=step_size.dtype, minval=-1, maxval=1",
           "dtype=step_size.dtype, minval=0, maxval=1", "dynamics/test_jitter.py"),
    Mutant("dynamics", "dynamics/hmc.py", "jnp.exp(-energy_error)", "jnp.exp(-energy_error / 2)", METROPOLIS),
    Mutant("dynamics", "dynamics/hmc.py", "uniform < acceptance_rate, new, old", "uniform > acceptance_rate, new, old",
           METROPOLIS),
    Mutant("dynamics", "dynamics/split_hmc.py", "(mass.force(gradient) - place)", "mass.force(gradient)", SPLIT),
    Mutant("dynamics", "dynamics/anchor.py", 'target.gradient(state["anchor"], client)',
           'target.gradient(state["position"], client)',
           "dynamics/test_debiased.py::test_first_round_is_that_of_shifted_clients"),
    # gradients and the target
    Mutant("gradients", "density/gradient.py", "client.scale * client.num_rows.astype(client.scale.dtype) / size",
           "client.scale", f"{GRADIENT}::test_mean_over_all_minibatches_is_the_full_gradient"),
    Mutant("gradients", "density/gradient.py", "self.scale * noise", "self.scale**2 * noise",
           f"{GRADIENT}::test_gaussian_noise_has_its_scale"),
    Mutant("gradients", "density/target.py", "client.scale * loss - self._log_prior(position)",
           "client.scale * (loss - self._log_prior(position))",
           f"{GRADIENT}::test_weighted_potentials_count_the_prior_once_and_every_row_once"),
    Mutant("gradients", "density/model.py", "return row_weights * self.seen", "return 1.0 * self.seen",
           f"{GRADIENT}::test_pooling_keeps_the_target_of_given_weights"),
    Mutant("gradients", "density/subset.py", "_NUM_ROUNDS = 12", "_NUM_ROUNDS = 1",
           "density/test_subset.py::test_pairs_are_equally_likely"),
    # averaging
    Mutant("averaging", "engines/record.py", '_total([jnp.einsum("c,c...->...", w, part)',
           "_total([jnp.mean(part, axis=0)", HALVES),
    Mutant("averaging", "engines/record.py", "return joined if order is None else joined[order]", "return joined",
           "runs/test_invariance.py::test_padding_does_not_matter"),
    Mutant("averaging", "engines/record.py", "divergence = Divergence(chain, first_round + done, client)",
           "divergence = Divergence(chain, first_round, client)", RECORD),
    Mutant("averaging", "engines/record.py", "phase.rounds_sampled(round_index) > 0:",
           "phase.rounds_sampled(round_index) >= 0:", RECORD),
    Mutant("averaging", "engines/in_process/row_space/averaging.py", "mean = Pair(row_weights * own.at,",
           "mean = Pair(own.at,", "engines/test_row_space.py::test_single_precision_agrees_to_its_rounding"),
    # keys
    Mutant("keys", "keys.py", "_fold(keys.shared, _MOMENTUM, trajectory)", "_fold(keys.shared, _MOMENTUM)", STREAMS),
    Mutant("keys", "keys.py", "_fold(keys.private, _MOMENTUM, trajectory, identity[0], identity[1])",
           "_fold(keys.private, _MOMENTUM, trajectory, identity[0])", STREAMS),
    Mutant("keys", "keys.py", "2 * leapfrog_step + half", "leapfrog_step + half", STREAMS),
    Mutant("keys", "keys.py", "seed % 2**32, seed // 2**32", "seed % 2**32, 0", STREAMS),
    Mutant("keys", "keys.py", "roots(seed if private_seed is None else private_seed, _PRIVATE)",
           "roots(seed, _PRIVATE)", STREAMS),
    # checkpoints and files
    Mutant("checkpoints", "runs/checkpoint.py", "hashlib.sha256(before.encode())", "hashlib.sha256()",
           f"{DAMAGE}::test_a_block_of_another_run_is_drawn_again"),
    Mutant("checkpoints", "runs/checkpoint.py", "if _checksum(self._last, content) == checksum else None", "",
           f"{DAMAGE}::test_a_block_of_another_run_is_drawn_again"),
    Mutant("checkpoints", "runs/checkpoint.py", "same = saved == current", "same = True",
           f"{DAMAGE}::test_settings_of_another_kind_get_a_sentence"),
    Mutant("checkpoints", "runs/history.py", "_outline(saved.get(\"state\")) != _outline(self.state)", "False",
           f"{DAMAGE}::test_a_block_of_the_wrong_content_with_the_right_checksum_is_refused"),
    Mutant("checkpoints", "runs/checkpoint.py", "filter(_LEFTOVER.fullmatch, names)",
           'filter(lambda name: name.endswith("tmp"), names)', f"{DAMAGE}::test_files_of_others_stay"),
    Mutant("files", "durable.py", "            os.unlink(temporary)", "            pass",
           f"{DAMAGE}::test_a_file_is_written_whole_or_not_at_all"),
    Mutant("files", "durable.py", "        os.replace(temporary, path)", "        os.link(temporary, path)",
           f"{DAMAGE}::test_a_file_is_written_whole_or_not_at_all"),
    Mutant("files", "draws_file.py", "if end[len(_MARK) :] != ", "if False and end[len(_MARK) :] != ",
           "test_draws.py::test_damaged_draws_are_refused_before_hdf5_sees_them"),
    Mutant("files", "draws_file.py", "return not size or file.read().startswith(_MARK)", "return True",
           "test_draws.py::test_only_draws_are_replaced"),
    # wire, rules, gate, registry
    Mutant("wire", "engines/flare/wire.py", "or len(content) != expected:", "or len(content) < expected:", WIRE),
    Mutant("wire", "engines/flare/wire.py", 'self._dtype(field).newbyteorder("<")).tobytes()',
           'self._dtype(field).newbyteorder(">")).tobytes()', WIRE),
    Mutant("wire", "engines/flare/wire.py", "if came != expected:", "if came is None:", WIRE),
    Mutant("rules", "engines/flare/rules.py", "if num_rows < self.minimum_rows:", "if num_rows < 1:",
           f"{RULES}::test_refusals_of_a_site_name_what_and_why"),
    Mutant("rules", "engines/flare/rules.py", 'self.columns == "all" or column in self.columns',
           "True or column in self.columns", f"{RULES}::test_columns_are_allowed_by_name_or_by_their_array"),
    Mutant("rules", "engines/flare/rules.py", "if len(weights) < self.minimum_sites:", "if not weights:",
           f"{DISCLOSURE}::test_orders_in_which_an_average_would_be_one_site_s_are_refused"),
    Mutant("rules", "engines/flare/rules.py", "> self.maximum_weight * sum(weights):", "> self.maximum_weight:",
           f"{DISCLOSURE}::test_orders_in_which_an_average_would_be_one_site_s_are_refused"),
    Mutant("rules", "engines/flare/work.py", "Refused(Refusal.RARE_LEVEL, *rare.columns)",
           "Refused(Refusal.RARE_LEVEL, rare.words)",
           f"{DISCLOSURE}::test_what_breaks_a_rule_is_refused_in_the_same_words_whatever_the_rows"),
    Mutant("rules", "data/rare.py", "groups += [product for", "groups = groups or [product for",
           f"{DISCLOSURE}::test_what_breaks_a_rule_is_refused_in_the_same_words_whatever_the_rows"),
    Mutant("ledger", "engines/flare/work.py", "self._counts.round(run, round_index, broadcast)",
           "program.reply(round_index, sent), self._counts.round(run, round_index, broadcast)",
           f"{COUNTS}::test_runs_and_their_rounds"),
    Mutant("ledger", "engines/flare/counts.py", ".encode() + broadcast", ".encode()",
           f"{COUNTS}::test_runs_and_their_rounds"),
    Mutant("ledger", "engines/flare/ledger.py", "and len(asked) >= maximum:", "and len(asked) > maximum:",
           f"{COUNTS}::test_choices_of_columns_count_once_and_no_more_than_the_rule_are_answered"),
    Mutant("survey", "engines/flare/work.py", "summary if agreement is None else without_moments(summary)", "summary",
           f"{SURVEY}::test_no_site_s_own_mean_or_squares_are_among_what_the_server_hears"),
    Mutant("rules", "engines/flare/rules.py", "hmac.digest(secret, order.encode(), hashlib.sha256)",
           'hmac.digest(b"", order.encode(), hashlib.sha256)',
           f"{RULES}::test_private_seeds_differ_by_order_and_by_secret"),
    # the secure sum
    Mutant("masks", "engines/flare/masks.py", "+ name + broadcast", "+ name", AGAIN),
    Mutant("masks", "engines/flare/masks.py", "+ name + broadcast", "+ broadcast", AGAIN),
    Mutant("masks", "engines/flare/masks.py", "hidden -= mask", "hidden += mask", EXACT),
    Mutant("masks", "engines/fixed_point.py", "if words[-1] != _check(words, num_summands):", "if False:", CHANGED),
    Mutant("masks", "engines/fixed_point.py", "np.arange(1, 2 * len(words) - 2, 2, dtype=WORD)",
           "np.zeros(len(words) - 1, WORD)", CHANGED),
    Mutant("masks", "engines/flare/agreement.py", "HKDF(SHA256(), 32, salt,", "HKDF(SHA256(), 32, None,", PAIRS),
    Mutant("masks", "engines/flare/agreement.py", "json.dumps([self.transcript, context])", "json.dumps([context])",
           HELLOS),
    Mutant("masks", "engines/flare/agreement.py", "X25519PrivateKey.generate()",
           "X25519PrivateKey.from_private_bytes(identity.name.encode().ljust(32))", PAIRS),
    Mutant("masks", "engines/flare/agreement.py", "if set(told) != set(own.sites):", "if set(own.sites) - set(told):",
           TRICKED),
    Mutant("masks", "engines/flare/agreement.py", "if tuple(statement.sites) != own.sites:", "if False:", TRICKED),
    Mutant("masks", "engines/flare/agreement.py", "if not is_valid or common_name(certificate) != name:",
           "if not is_valid:", TRICKED),
    Mutant("masks", "engines/flare/agreement.py", "certificate.verify_directly_issued_by(own.authority)", "pass",
           TRICKED),
    Mutant("masks", "engines/flare/agreement.py",
           "_verify(certificate.public_key(), signature, _PREFIX + hello.statement.encode())", "pass", TRICKED),
    Mutant("masks", "engines/flare/masked_replies.py", "reply in round {round_index}", "reply", NEW_JOB),
    Mutant("masks", "engines/flare/masked_replies.py", "digest.update(packed[name])", "digest.update(b'')", NEW_JOB),
    Mutant("masks", "engines/flare/work.py", "setdefault(order.text, self._mark) != self._mark",
           "setdefault(order.text, self._mark) is None",
           f"{MASKS}::test_one_order_is_not_answered_of_two_contents"),
    Mutant("gate", "engines/flare/gate.py", "if FqcnInfo(origin).root != owner.root:", "if False:", GATE),
    Mutant("gate", "engines/flare/gate.py", "None if topics is None or topic in topics else",
           "None if topics is None or topics else", GATE),
    Mutant("registry", "registry.py", "or reference not in own:", "or False:",
           "test_registry.py::test_what_is_one_s_own_is_imported_only_if_it_is_listed"),
    # encoding
    Mutant("encoding", "data/encoding.py", "== np.arange(1, len(levels))", "== np.arange(len(levels) - 1)",
           f"{ENCODING}::test_a_level_seen_at_one_client_is_a_column_at_all"),
    Mutant("encoding", "data/pooled.py", "column.squares + column.count * (column.mean - mean) ** 2", "column.squares",
           f"{ENCODING}::test_only_a_feature_that_is_constant_over_all_clients_is_refused"),
    Mutant("encoding", "data/summaries.py", "levels if len(levels) <= MAX_LEVELS else levels[:1]", "levels",
           f"{ENCODING}::test_of_too_many_levels_only_their_number_and_an_example_pass"),
    # diagnostics, certificate, weights, row space
    Mutant("diagnostics", "stein.py", "g[..., None, :] - np.eye(dim)", "g[..., None, :]",
           f"{CERTIFICATE}::test_a_gaussian_posterior_is_found_exactly_whatever_the_draws_are"),
    Mutant("diagnostics", "certificate.py", "flat.std(axis=(0, 1)) / moments.sd - 1", "flat.std(axis=(0, 1)) - 1",
           f"{CERTIFICATE}::test_the_law_s_shift_and_excess_are_found_within_their_monte_carlo_error"),
    Mutant("diagnostics", "report/convergence.py", "np.hypot(error_a[name], error_b[name])", "error_a[name]",
           "report/test_convergence.py::test_differences_of_equal_laws_are_standard_normal_and_of_unequal_ones_are_not"),
    Mutant("diagnostics", "report/distances.py", "np.abs(np.sort(a)[i] - np.sort(b)[j])", "np.abs(a[i] - b[j])",
           "report/test_distances.py::test_marginal_error_is_the_mean_of_scipys_distances"),
    Mutant("diagnostics", "report/convergence.py", "return float(np.max(np.concatenate(",
           "return float(np.nanmax(np.concatenate(",
           "report/test_convergence.py::test_max_r_hat_sees_one_bad_parameter_and_lets_no_nan_hide"),
    Mutant("adaptive", "adaptive/weights.py", "places = (np.arange(count) + generator.uniform()) / count",
           "places = np.sort(generator.uniform(size=count)) ** 2",
           f"{ALGEBRA}::test_a_point_is_drawn_as_often_as_its_weight_says"),
    Mutant("adaptive", "adaptive/weights.py", "(middle, high) if 1 / np.sum(at(middle) ** 2) >= ess",
           "(middle, high) if 1 / np.sum(at(middle) ** 2) < ess",
           f"{ALGEBRA}::test_tempered_weights_have_the_size_that_was_asked_for"),
    Mutant("adaptive", "adaptive/surrogate.py", "(vectors * np.abs(values)) @ vectors.T",
           "(vectors * np.maximum(values, 0)) @ vectors.T", f"{ALGEBRA}::test_a_saddle_is_turned_around"),
    Mutant("adaptive", "adaptive/surrogate.py", "2 * (vectors.T @ C @ vectors) / (values[:, None] + values)",
           "(vectors.T @ C @ vectors) / (values[:, None] + values)",
           f"{ALGEBRA}::test_the_fit_to_a_quadratic_is_that_quadratic"),
    # models and checks
    Mutant("models", "models/site_effects.py", "supports={**(model.supports or {}), SPREAD: positive}",
           "supports={SPREAD: positive}", "models/test_site_effects_of_families.py"),
    Mutant("models", "models/survival.py", "return happened - jnp.exp(", "return happened - 2 * jnp.exp(",
           "models/test_laws.py::test_rows_have_scipys_log_likelihood"),
    Mutant("models", "density/marginal.py", "_NUM_NODES = 25", "_NUM_NODES = 3",
           "density/test_marginal.py::test_marginal_equals_a_fine_grid"),
    Mutant("models", "density/supports.py", "model.temperature * log_jacobian(", "0 * log_jacobian(",
           "density/test_supports.py"),
    Mutant("checks", "checks/groups.py", "np.all(rows >= minimum)", "np.any(rows >= minimum)",
           "checks/test_loo.py::test_groups_hold_enough_rows_of_every_class_and_add_up"),
    Mutant("checks", "checks/loo.py", "squares + size * shifts**2", "squares",
           "checks/test_loo.py::test_loo_is_that_of_arviz_on_pooled_rows"),
    # privacy
    Mutant("privacy", "adaptive/private_answer.py", "jnp.minimum(box, ball).max()))",
           "jnp.minimum(box, ball).max())) / 2", "privacy/test_sensitivity.py"),
    Mutant("privacy", "adaptive/private_answer.py", "return 2**0.5 * radius**2 / 4", "return radius**2 / 4",
           "privacy/test_sensitivity.py"),
    Mutant("privacy", "engines/noise.py", "normal * (deviation / grid)", "normal * (deviation / grid / 2)",
           "privacy/test_sensitivity.py::test_noise_has_its_deviation_and_stays_on_the_grid"),
    Mutant("privacy", "keys.py", "jax.random.fold_in(key, word), None", "key, None",
           "privacy/test_private_laplace.py::test_keys_of_releases_depend_on_all_that_is_asked"),
    Mutant("privacy", "engines/flare/noise.py", "array.tobytes()]", 'b""]',
           "privacy/test_private_sites.py::test_noise_is_standard_normal_and_follows_from_all_that_is_asked"),
    Mutant("privacy", "engines/flare/privacy.py", "composed([*mus, further]) ** 2",
           "composed([*mus[1:], further]) ** 2",
           "privacy/test_private_sites.py::test_a_budget_is_spent_and_then_refused_also_after_a_restart"),
    Mutant("privacy", "adaptive/noise_aware.py", "answer.score_sd**2 * identity", "0 * identity",
           "privacy/test_private_laplace.py::test_posteriors_cover_as_often_as_they_say"),
]  # fmt: skip
