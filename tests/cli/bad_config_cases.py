"""Configs with bases, environment variables and overrides that are wrong: further tables of bad_input.py.

Every case has a folder of its own below the one that holds base.yaml and data. Its files are named as the messages
name them; {c} is the folder, and c.yaml the config that is trained.
"""

# What the cases find in the environment. DUET_BAD_UNSET is not set.
ENVIRONMENT = {"DUET_BAD_TEXT": "fast", "DUET_BAD_EMPTY": "", "DUET_BAD_NUMBER": "-1", "DUET_BAD_NULL": "null",
               "DUET_BAD_LIST": "[4]"}

BASE = "_base_: ../base.yaml\n"

# Files, overrides, what the message must say.
CASES = [
    # _base_: what it names
    ({"c.yaml": "_base_: nowhere.yaml\n"}, [], r"{c}/c\.yaml:1: _base_ names '{c}/nowhere\.yaml', which cannot be read"),
    ({"c.yaml": "seed: 1\n_base_:\n  - ../base.yaml\n  - lost.yaml\n"}, [], r"{c}/c\.yaml:4: _base_\.1 names '{c}/lost\.yaml'"),
    ({"c.yaml": "_base_: ../data\n"}, [], r"c\.yaml:1: _base_ names 'data', which cannot be read"),
    ({"c.yaml": "_base_: /nowhere/x.yaml\n"}, [], r"_base_ names '/nowhere/x\.yaml'"),
    ({"c.yaml": "_base_: c.yaml\n"}, [], r"c\.yaml:1: _base_ leads back to where it began: {c}/c\.yaml -> {c}/c\.yaml"),
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": "_base_: sub/b.yaml\n", "sub/b.yaml": "seed: 1\n_base_: ../a.yaml\n"}, [],
     r"sub/b\.yaml:2: _base_ leads back .*{c}/a\.yaml -> {c}/sub/b\.yaml -> {c}/a\.yaml"),
    ({"c.yaml": "_base_: 3\n"}, [], r"_base_ names '{c}/3'"),
    ({"c.yaml": "_base_: ''\n"}, [], r"c\.yaml:1: _base_ is '', expected the path"),
    ({"c.yaml": "_base_: null\n"}, [], r"c\.yaml:1: _base_ is null, expected a file or a list"),
    ({"c.yaml": "_base_: {file: ../base.yaml}\n"}, [], r"c\.yaml:1: _base_ is a map, expected a file or a list"),
    ({"c.yaml": "_base_: [[../base.yaml]]\n"}, [], r"c\.yaml:1: _base_\.0 is a list of 1, expected the path"),
    ({"c.yaml": BASE + "_base_: ../base.yaml\n"}, [], r"c\.yaml:2: _base_ is given twice, first at {c}/c\.yaml:1"),
    ({"c.yaml": BASE + "model: {_base_: ../base.yaml}\n"}, [], r"c\.yaml:2: found model\._base_, expected _base_ at the top"),
    ({"c.yaml": BASE + "custom_hooks: [{_base_: x.yaml}]\n"}, [], r"c\.yaml:2: found custom_hooks\.0\._base_"),
    ({"c.yaml": "_base_: ${env:DUET_BAD_UNSET}/x.yaml\n"}, [], r"c\.yaml:1: _base_ asks .* DUET_BAD_UNSET, which is not set"),
    ({"c.yaml": "_base_: ${env:DUET_BAD_TEXT}.yaml\n"}, [], r"c\.yaml:1, env DUET_BAD_TEXT: _base_ names '{c}/fast\.yaml'"),
    # _base_: what is in it
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": ""}, [], r"{c}/a\.yaml:1: the config is empty"),
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": "- 1\n"}, [], r"{c}/a\.yaml:1: the config is no map"),
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": "seed: [1\n"}, [], r"{c}/a\.yaml:2:\d+: this is not YAML"),
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": "seed: 1\nseed: 2\n"}, [], r"{c}/a\.yaml:2: seed is given twice, first at {c}/a\.yaml:1"),
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": "seed: \x01\n"}, [], r"{c}/a\.yaml:1:\d+: found the control character 1"),
    ({"c.yaml": "_base_: [../base.yaml, a.yaml]\n", "a.yaml": "seed: 1\ntrainer: {max_steps: 9}\n"}, [],
     r"{c}/a\.yaml:2: trainer is also in another base, at base\.yaml:\d+.*bases of {c}/c\.yaml:1"),
    ({"c.yaml": "_base_: [a.yaml, b.yaml]\n", "a.yaml": BASE, "b.yaml": BASE}, [], r"base\.yaml:1: model is also in another base"),
    ({"c.yaml": BASE, "../other.yaml": "x: 1\n"}, ["x=1"], r"command line: unknown key 'x' in the config"),
    # Mistakes keep the place of the file that made them
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": BASE + "sed: 3\n"}, [], r"{c}/a\.yaml:2: unknown key 'sed' in the config; .*'seed'"),
    ({"c.yaml": "_base_: a.yaml\nseed: 1\n", "a.yaml": BASE + "trainer: {acumulate: 3}\n"}, [],
     r"{c}/a\.yaml:2: unknown key 'acumulate' in trainer; .*'accumulate'"),
    ({"c.yaml": BASE + "trainer: {max_steps: few}\n"}, [], r"{c}/c\.yaml:2: trainer\.max_steps is 'few'"),
    ({"c.yaml": BASE + "optim_wrapper: {optimizer: {lr: -1}}\n"}, [], r"{c}/c\.yaml:2: optim_wrapper\.optimizer\.lr is -1"),
    ({"c.yaml": "_base_: a.yaml\n", "a.yaml": BASE + "seed: -1\n"}, [], r"{c}/a\.yaml:2: seed is -1"),
    ({"c.yaml": BASE + "model:\n"}, [], r"{c}/c\.yaml:2: model is missing"),
    ({"c.yaml": BASE + "data: {train: null}\n"}, [], r"{c}/c\.yaml:2: data\.train is missing"),
    # Maps over what is none, and the other way round
    ({"c.yaml": BASE + "work_dir: {a: 1}\n"}, [], r"c\.yaml:2: work_dir is a map, expected text"),
    ({"c.yaml": BASE + "param_scheduler: {type: Cosine}\n"}, [],
     r"c\.yaml:2: param_scheduler is a map here and a list of 1 in its base \(base\.yaml:\d+\).*add _delete_: true"),
    ({"c.yaml": BASE + "model: {channels: {first: 4}}\n"}, [], r"c\.yaml:2: model\.channels is a map here and a list of 1"),
    ({"c.yaml": BASE + "trainer: {max_steps: {n: 1}}\n"}, [], r"trainer\.max_steps is a map here and 4 in its base"),
    ({"c.yaml": BASE + "trainer: [4]\n"}, [], r"c\.yaml:2: trainer is a list of 1, expected a map"),
    ({"c.yaml": BASE + "model: SmallCnn\n"}, [], r"c\.yaml:2: model is 'SmallCnn', expected a map"),
    # A changed type beside keys that stay
    ({"c.yaml": BASE + "optim_wrapper: {optimizer: {type: SGD}}\n"}, [],
     r"base\.yaml:\d+: unknown key 'betas' in optim_wrapper\.optimizer"),
    ({"c.yaml": BASE + "model:\n  type: Mlp\n"}, [], r"base\.yaml:3: unknown key 'channels' in model"),
    ({"c.yaml": BASE + "data: {train: {type: Text, path: data/text}}\n"}, [],
     r"base\.yaml:\d+: unknown key 'images' in data\.train"),
    ({"c.yaml": BASE + "optim_wrapper: {optimizer: {_delete_: true, lr: 0.1, type: SDG}}\n"}, [], r"c\.yaml:2: .*type is 'SDG', .*'SGD'"),
    # _delete_
    ({"c.yaml": BASE + "_delete_: true\n"}, [], r"c\.yaml:2: _delete_ stands at the top of a file"),
    ({"c.yaml": BASE + "model: {_delete_: please, type: Mlp}\n"}, [], r"c\.yaml:2: model\._delete_ is 'please', expected true or false"),
    ({"c.yaml": BASE + "model: {_delete_: {a: 1}, type: Mlp}\n"}, [], r"c\.yaml:2: model\._delete_ is a map, expected true or false"),
    ({"c.yaml": BASE + "model: {_delete_: true}\n"}, [], r"c\.yaml:2: model\.type is missing"),
    ({"c.yaml": BASE + "model: {delete: true}\n"}, [], r"c\.yaml:2: unknown key 'delete' in model"),
    ({"c.yaml": BASE}, ["model._delete_=true"], r"command line: model\.type is missing"),
    ({"c.yaml": BASE}, ["model._delete_=7"], r"command line: model\._delete_ is 7, expected true or false"),
    ({"c.yaml": BASE}, ["_delete_=true"], r"command line: found '_delete_=true', expected key=value"),
    # Environment variables
    ({"c.yaml": BASE + "seed: ${env:DUET_BAD_UNSET}\n"}, [], r"c\.yaml:2: seed asks for the environment variable DUET_BAD_UNSET, which is not set"),
    ({"c.yaml": BASE + "seed: ${env:DUET_BAD_TEXT}\n"}, [], r"c\.yaml:2, env DUET_BAD_TEXT: seed is 'fast', expected an integer"),
    ({"c.yaml": BASE + "seed: ${env:DUET_BAD_NUMBER}\n"}, [], r"c\.yaml:2, env DUET_BAD_NUMBER: seed is -1"),
    ({"c.yaml": BASE + "seed: ${env:DUET_BAD_EMPTY}\n"}, [], r"env DUET_BAD_EMPTY: seed is '', expected an integer"),
    ({"c.yaml": BASE + "work_dir: ${env:DUET_BAD_EMPTY}\n"}, [], r"env DUET_BAD_EMPTY: work_dir is empty"),
    ({"c.yaml": BASE + "model: {type: \"${env:DUET_BAD_NULL}\"}\n"}, [], r"env DUET_BAD_NULL: model\.type is missing"),
    ({"c.yaml": BASE + "model: {channels: \"${env:DUET_BAD_LIST}\"}\n"}, [], r"model\.channels is '\[4\]', expected a list"),
    ({"c.yaml": BASE + "seed: ${env:DUET_BAD_UNSET,many}\n"}, [], r"c\.yaml:2, env DUET_BAD_UNSET unset: seed is 'many'"),
    ({"c.yaml": BASE + "seed: 1${env:DUET_BAD_NUMBER}\n"}, [], r"seed is '1-1', expected an integer"),
    ({"c.yaml": BASE + "seed: ${env:}\n"}, [], r"c\.yaml:2: seed has '\$\{env:\}', expected \$\{env:NAME\}"),
    ({"c.yaml": BASE + "seed: ${env:A-B}\n"}, [], r"seed has '\$\{env:A-B\}'"),
    ({"c.yaml": BASE + "seed: ${env:DUET_BAD_TEXT\n"}, [], r"seed has '.*' without a closing"),
    ({"c.yaml": BASE + "work_dir: ${mode}/x\n"}, [], r"c\.yaml:2: work_dir has '\$\{mode\}', .*write \$\$\{ for the characters"),
    ({"c.yaml": BASE + "work_dir: ${oc.create:x}\n"}, [], r"work_dir has '\$\{oc\.create:x\}'"),
    ({"c.yaml": BASE + "model: {dropout: ${env:DUET_BAD_NUMBER}}\n"}, [], r"c\.yaml:\d+:\d+: this is not YAML: .*quotes up to there"),
    ({"c.yaml": BASE}, ["seed=${env:DUET_BAD_UNSET}"], r"command line: seed asks for .* DUET_BAD_UNSET"),
    ({"c.yaml": BASE}, ["seed=${env:DUET_BAD_TEXT}"], r"command line, env DUET_BAD_TEXT: seed is 'fast'"),
    # What mmengine would fill in
    ({"c.yaml": BASE + "work_dir: x/{{ fileBasename }}\n"}, [], r"c\.yaml:2: work_dir has '\{\{ fileBasename \}\}', .*\$\{env:NAME\}"),
    ({"c.yaml": BASE + "work_dir: {{ fileDirname }}\n"}, [], r"c\.yaml:2: found a key that is no plain word .*\{\{\.\.\.\}\} is not filled in"),
    ({"c.yaml": BASE}, ["trainer.mode=graph"], r"unknown key 'mode' in trainer; known: (?!.*rule)"),
    # Overrides
    ({"c.yaml": BASE}, ["_base_=../base.yaml"], r"command line: found '_base_=\.\./base\.yaml', expected _base_ in a file only"),
    ({"c.yaml": BASE}, ["model._base_=x"], r"command line: unknown key '_base_' in model"),
    ({"c.yaml": BASE}, ["model={_base_: x}"], r"command line: found model\._base_"),
    ({"c.yaml": BASE}, ["~modle"], r"command line: there is no modle to delete; .*did you mean 'model'"),
    ({"c.yaml": BASE}, ["~model.drop"], r"there is no model\.drop to delete; known: .*did you mean 'dropout'"),
    ({"c.yaml": BASE}, ["~model.dropout.x"], r"there is no model\.dropout\.x to delete"),
    ({"c.yaml": BASE}, ["~param_scheduler.1"], r"there is no param_scheduler\.1 to delete"),
    ({"c.yaml": BASE}, ["~"], r"found '~', expected key=value"),
    ({"c.yaml": BASE}, ["~model."], r"found '~model\.', expected key=value"),
    ({"c.yaml": BASE}, ["~model"], r"model is missing"),
    ({"c.yaml": BASE}, ["model.'dropout=1"], r"found 'model\.'dropout=1', expected key=value"),
    ({"c.yaml": BASE}, ["optim_wrapper.paramwise_cfg.custom_keys.'a.b'.lr=[1]"], r"custom_keys\.a\.b\.lr is a list of 1, expected a number"),
    ({"c.yaml": BASE}, ["~param_scheduler.0.end", "param_scheduler.0.ed=3"], r"unknown key 'ed' in param_scheduler\.0; .*did you mean 'end'"),
    ({"c.yaml": BASE}, ["model.channels.0.1=3"], r"model\.channels\.0 is the value 4, expected a map"),
    ({"c.yaml": BASE}, ["model.channels.x=3"], r"model\.channels has 1 items, found index 'x'"),
    ({"c.yaml": BASE}, ["param_scheduler={type: Cosine, beginn: 1}"], r"unknown key 'beginn' in param_scheduler; .*'begin'"),
    ({"c.yaml": BASE}, ["evaluator=null", "default_hooks.checkpoint.save_best=accuracy"], r"save_best is 'accuracy'"),
]
