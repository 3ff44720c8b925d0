# Prepare acquired data: write the arrays that a model trains on.
#
# REQUIRED INPUTS for genomes:
#   results/{experiment}/data/{dataset}/sequences/{class}.fasta
# REQUIRED INPUTS for other kinds:
#   the files that their `prepared_from` names, such as results/{experiment}/data/{dataset}/source/
# REQUIRED INPUTS for pictures with captions, besides results/{experiment}/data/{dataset}/source/:
#   the folder of the pictures and the file of the weights that the dataset names
# OUTPUTS for every kind:
#   results/{experiment}/data/{dataset}/split{seed}/dataset.json    and alongside it the arrays, whose
#                                                       digests it holds
# FURTHER OUTPUTS for genomes:
#   results/{experiment}/data/{dataset}/codes.npy       uint8, the codes of all kept records
#   results/{experiment}/data/{dataset}/records.tsv     the kept records, with their starts
#   results/{experiment}/data/{dataset}/classes.csv     counts of each class
#   results/{experiment}/data/{dataset}/sketches.npz    a sample of the k-mers of each genome
#   results/{experiment}/data/{dataset}/clusters.tsv    clusters of near-duplicates
#   results/{experiment}/data/{dataset}/split{seed}/test_similarity.npy, leakage.json
#                                                       how similar each test row is to training
#                                                       genomes
# FURTHER OUTPUTS for pictures with captions:
#   results/{experiment}/data/{dataset}/features/       the features of all listed pictures
#
# The split comes before the balancing, so that nothing derived from a test row is trained on. If an
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
        code=lambda wildcards: kind_code("genomes"),
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


rule clusters:
    input:
        sequences=f"{DATA}/sequences",
        records=f"{DATA}/records.tsv",
    output:
        sketches=f"{DATA}/sketches.npz",
        clusters=f"{DATA}/clusters.tsv",
    log:
        "results/{experiment}/logs/{dataset}/clusters.log",
    priority: FIRST
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: kind_code("genomes"),
        files=files,
        job=job("clusters", lambda wildcards: settings_of(genomes(wildcards), "similarity")),
    message:
        "Find near-duplicates among the genomes of {wildcards.dataset}"
    shell:
        STEP


rule features:
    input:
        unpack(extracted_from),
    output:
        features=directory(f"{DATA}/features"),
    log:
        "results/{experiment}/logs/{dataset}/features.log",
    priority: FIRST
    conda:
        "../envs/train.yaml"
    params:
        code=lambda wildcards: kind_code("captions", "vgg16.py"),
        files=files,
        job=job(
            "features",
            lambda wildcards: settings_of(dataset(wildcards)["source"], "weights_sha256"),
        ),
    message:
        "Compute the features of the pictures of {wildcards.dataset}"
    shell:
        STEP


rule arrays:
    input:
        unpack(prepared_from),
    output:
        description=f"{DATA}/split{{seed}}/dataset.json",
    log:
        "results/{experiment}/logs/{dataset}/split{seed}.log",
    priority: FIRST
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: kind_code(kind_with(wildcards, "arrays")),
        files=files,
        job=job(
            "arrays",
            lambda wildcards: {
                "kind": dataset(wildcards)["kind"],
                "name": wildcards.dataset,
                "preparation": settings_result(wildcards, "preparation"),
                "seed": int(wildcards.seed),
            },
        ),
    message:
        "Split {wildcards.dataset} with seed {wildcards.seed} into arrays"
    shell:
        STEP


rule leakage:
    input:
        dataset=f"{DATA}/split{{seed}}/dataset.json",
        sketches=f"{DATA}/sketches.npz",
    output:
        similarity=f"{DATA}/split{{seed}}/test_similarity.npy",
        report=f"{DATA}/split{{seed}}/leakage.json",
    log:
        "results/{experiment}/logs/{dataset}/leakage{seed}.log",
    conda:
        "../envs/prepare.yaml"
    params:
        code=lambda wildcards: kind_code("genomes"),
        files=files,
        job=job("leakage", lambda wildcards: settings_of(genomes(wildcards), "similarity")),
    message:
        "Compare the test genomes of {wildcards.dataset}, split {wildcards.seed}, with the others"
    shell:
        STEP
