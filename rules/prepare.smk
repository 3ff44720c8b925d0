# Prepare acquired data: write the arrays that a model trains on.
#
# REQUIRED INPUTS in results/{experiment}/data/{dataset}/:
#   sequences/{class}.fasta       of genomes
#   source/                       of other kinds, or the files that their `preparation_inputs` names;
#                                 pictures with captions also need their folder and the weights
# OUTPUTS in the same folder, for every kind:
#   split{seed}/dataset.json      with the digests of the arrays, which are alongside it
# FURTHER OUTPUTS for genomes:
#   codes.npy                     uint8, the codes of all kept records
#   records.tsv, classes.csv      the kept records, with their starts; counts of each class
#   sketches.npz, clusters.tsv    a sample of the k-mers of each genome; clusters of near-duplicates
#   split{seed}/test_similarity.npy, leakage.json    how similar test rows are to training genomes
# FURTHER OUTPUTS for pictures with captions:
#   features/                     the features of all listed pictures
#
# The split comes before the balancing, so that no training row is derived from a test row. If an
# experiment chooses the opposite order, the dataset is marked as leaky.


rule codes:
    input:
        sequences=f"{DATA}/sequences",
    output:
        codes=f"{DATA}/codes.npy",
        records=f"{DATA}/records.tsv",
        classes=f"{DATA}/classes.csv",
    log:
        "results/{experiment}/logs/{dataset}/codes.log",
    priority: FIRST
    conda:
        "../envs/prepare.yaml"
    params:
        files=files,
        job=job(
            "codes",
            lambda wildcards: settings_of(genomes(wildcards), "classes", "length", "deduplicate")
            | {"letters_kept": letters_kept(genomes(wildcards))},
        ),
    message:
        "Check and encode the genomes of {wildcards.dataset}"
    shell:
        STEP


use rule codes as clusters with:
    input:
        sequences=f"{DATA}/sequences",
        records=f"{DATA}/records.tsv",
    output:
        sketches=f"{DATA}/sketches.npz",
        clusters=f"{DATA}/clusters.tsv",
    log:
        "results/{experiment}/logs/{dataset}/clusters.log",
    params:
        job=job("clusters", lambda wildcards: settings_of(genomes(wildcards), "similarity")),
    message:
        "Find near-duplicates among the genomes of {wildcards.dataset}"


use rule codes as features with:
    input:
        unpack(extraction_files),
    output:
        features=directory(f"{DATA}/features"),
    log:
        "results/{experiment}/logs/{dataset}/features.log",
    conda:
        "../envs/train.yaml"
    params:
        job=job(
            "features",
            lambda wildcards: settings_of(dataset(wildcards)["source"], "weights_sha256"),
        ),
    message:
        "Compute the features of the pictures of {wildcards.dataset}"


use rule codes as arrays with:
    input:
        unpack(preparation_inputs),
    output:
        description=f"{DATA}/split{{seed}}/dataset.json",
    log:
        "results/{experiment}/logs/{dataset}/split{seed}.log",
    params:
        job=job(
            "arrays",
            lambda wildcards: {
                "kind": kind_with(wildcards, "arrays"),
                "name": wildcards.dataset,
                "preparation": settings_result(wildcards, "preparation"),
                "seed": int(wildcards.seed),
            },
        ),
    message:
        "Split {wildcards.dataset} with seed {wildcards.seed} into arrays"


use rule codes as leakage with:
    input:
        dataset=f"{DATA}/split{{seed}}/dataset.json",
        sketches=f"{DATA}/sketches.npz",
    output:
        similarity=f"{DATA}/split{{seed}}/test_similarity.npy",
        report=f"{DATA}/split{{seed}}/leakage.json",
    log:
        "results/{experiment}/logs/{dataset}/leakage{seed}.log",
    priority: 0
    params:
        job=job("leakage", lambda wildcards: settings_of(genomes(wildcards), "similarity")),
    message:
        "Compare the test genomes of {wildcards.dataset}, split {wildcards.seed}, with the others"
