# FASTA to the arrays a model trains on.
#
# REQUIRED INPUTS:
#   results/{experiment}/data/{dataset}/sequences/{class}.fasta
# OUTPUTS:
#   results/{experiment}/data/{dataset}/codes.npy       uint8, one row per record kept
#   results/{experiment}/data/{dataset}/records.tsv     the records behind those rows
#   results/{experiment}/data/{dataset}/classes.csv     what each class holds
#   results/{experiment}/data/{dataset}/split{seed}/    train and test arrays, dataset.json
#
# The split comes before the balancing, so that nothing derived from a test row is trained on; the
# dataset says so where an experiment asks for the opposite.


rule codes:
    input:
        f"{DATA}/sequences",
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
        classes=lambda wildcards: dataset(wildcards)["classes"],
        length=lambda wildcards: dataset(wildcards)["length"],
        margin=lambda wildcards: margin(dataset(wildcards)),
        deduplicate=lambda wildcards: dataset(wildcards)["deduplicate"],
        folder=subpath(output.codes, parent=True),
    message:
        "Check and encode the genomes of {wildcards.dataset}"
    shell:
        """
        python -m scripts.encode \
            --sequences {input:q} \
            --classes {params.classes:q} \
            --length {params.length} \
            --margin {params.margin} \
            --deduplicate {params.deduplicate} \
            --output {params.folder:q} 2>&1 | tee -i {log:q}
        """


rule arrays:
    input:
        codes=f"{DATA}/codes.npy",
        records=f"{DATA}/records.tsv",
        classes=f"{DATA}/classes.csv",
    output:
        expand(
            f"{DATA}/split{{{{seed}}}}/{{file}}",
            file=["train.npy", "train_labels.npy", "test.npy", "test_labels.npy", "dataset.json"],
            allow_missing=True,
        ),
    log:
        "results/{experiment}/logs/{dataset}/split{seed}.log",
    priority: FIRST
    conda:
        "../envs/prepare.yaml"
    params:
        preparation=lambda wildcards: json.dumps(preparation(dataset(wildcards))),
        source=subpath(input.codes, parent=True),
        folder=subpath(output[0], parent=True),
    message:
        "Split {wildcards.dataset} with seed {wildcards.seed} and balance its classes"
    shell:
        """
        python -m scripts.arrays \
            --name {wildcards.dataset} \
            --preparation {params.preparation:q} \
            --seed {wildcards.seed} \
            --source {params.source:q} \
            --output {params.folder:q} 2>&1 | tee -i {log:q}
        """
